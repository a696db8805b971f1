"""The storage kit passes what is right, and every wrong storage fails the test that is about its fault."""

import re

import pytest

pytest_plugins = ["pytester"]

MEMORY = """
class TestSubject(StorageKit):
    provides = frozenset({{{claims}}})
    limit_bytes = 4 << 20
    patience_s = 1

    @pytest.fixture
    def storage(self):
        return storage.{name}({arguments})
"""
FILES = """
class TestSubject(StorageKit):
    provides = frozenset({{{claims}}})

    @pytest.fixture
    def storage(self, tmp_path):
        return storage.{name}(tmp_path)

    @pytest.fixture
    def reopen(self, tmp_path):
        return lambda: storage.{name}(tmp_path)
"""
LIMITED = """
class TestSubject(StorageKit):
    provides = frozenset({{Capability.DELETES, Capability.LISTS}})
    checksums = {checksums}

    @pytest.fixture
    def storage(self):
        return storage.{name}()

    @pytest.fixture
    def damage(self, storage):
        return storage.damage

    @pytest.fixture
    def fill_up(self, storage):
        return storage.filled
"""
REMOTE = """
class TestSubject(StorageKit):
    provides = frozenset({{Capability.SHARED, Capability.DELETES, Capability.LISTS}})
    patience_s = {patience_s}

    @pytest.fixture(scope="class")
    def server(self, tmp_path_factory):
        with remote.server(tmp_path_factory.mktemp("server")) as server:
            yield server

    @pytest.fixture
    def reopen(self, server):
        return lambda: remote.{name}(server.port)

    @pytest.fixture
    def storage(self, reopen):
        return reopen()
"""
EVICTS = "Capability.EVICTS"
PERSISTENT = "Capability.PERSISTENT"
SHARED = "Capability.SHARED"
ZERO_COPY = "Capability.ZERO_COPY"
DELETES = "Capability.DELETES"
LISTS = "Capability.LISTS"
NAMED = "Capability.NAMED_MEMORY"

IN_MEMORY = [
    ("ShortReadIsDone", "a_written_page_comes_back"),
    ("KeepsTheBuffer", "a_write_is_over_when_it_returns"),
    ("DropsSilently", "a_large_batch_is_one_call"),
    ("AnswersOutOfOrder", "answers_are_in_the_order_of_the_keys"),
    ("CountsKeysOnce", "a_key_may_repeat_in_a_batch"),
    ("FailsOnRepeats", "a_key_may_repeat_in_a_batch"),
    ("ShortAnswer", "answers_are_in_the_order_of_the_keys"),
    ("AnswersBooleans", "a_written_page_comes_back"),
    ("MissingIsFailed", "a_page_never_written_is_missing"),
    ("RefusesRewrite", "an_existing_key_may_be_written_again"),
    ("ContainsEverything", "contains_mostly_tells_what_a_read_would_find"),
    ("RaisesOnEmpty", "an_empty_batch_gives_no_answers"),
    ("RaisesOnAbsentDelete", "delete_takes_nothing_else_and_any_key"),
    ("DeletesNothing", "random_calls_agree_with_a_dictionary"),
    ("CutsKeys", "keys_that_differ_in_one_byte_are_different_pages"),
    ("TouchesAnotherSlot", "a_read_touches_only_its_views"),
    ("ReadsWholeBlocks", "a_read_touches_nothing_beyond_the_end_of_a_page"),
    ("ClearsWhatItWrites", "a_write_changes_nothing_in_the_arena"),
    ("ReadsOneRun", "a_read_touches_only_its_views"),
    ("WholeSectorsOnly", "a_page_may_have_any_size"),
    ("LooksThenTakes", "b084_removal_during_reads_gives_right_bytes_or_a_miss"),
    ("OneScratchBuffer", "batches_from_many_threads_do_not_mix"),
    ("WritesInPlace", "b087_two_writers_of_a_key_never_give_a_mix"),
    ("DeletesNothing", "deleted_pages_are_missing_and_others_stay"),
    ("LeasesWhatWasRead", "a_page_just_used_can_be_deleted"),
    ("RemembersByThread", "what_was_deleted_is_gone_for_every_thread"),
    ("TrustsWhatItSaid", "b084_a_page_gone_since_contains_is_missing"),
    ("ListsDeleted", "deleted_pages_are_not_listed"),
    ("ListsTwice", "lists_holds"),
    ("ListsStrangers", "lists_holds"),
    ("ListsNames", "lists_holds"),
    ("ListsTuples", "lists_holds"),
    ("ListsBlocks", "it_lists_what_a_page_measures"),
    ("ListsPrintable", "it_lists_any_key"),
    ("ListsTheFirstHundred", "it_lists_many"),
    ("ListsAsItGoes", "pages_may_come_and_go_between_its_batches"),
    ("ListsUnderItsLock", "a_listing_may_be_left_half_way"),
    ("ListsWhatHasGone", "pages_may_come_and_go_while_it_lists"),
    ("ShortIsDone", "b057_a_page_stored_shorter_is_never_done_and_fails_no_other"),
    ("OneBadPageFailsAll", "b057_a_page_stored_shorter_is_never_done_and_fails_no_other"),
    ("OneBadPageRaises", "b057_a_page_stored_shorter_is_never_done_and_fails_no_other"),
    ("BeyondTheView", "a_page_stored_longer_stays_within_its_view"),
    ("BucketOfNewKeys", "b088_a_key_there_already_fails_no_other"),
    ("OneAnswer", "all_calls_at_once_on_the_same_keys"),
    ("HangsOnceClosed", "close_lets_calls_under_way_end"),
    ("CrashesOnceClosed", "close_lets_calls_under_way_end"),
]
IN_FILES = [
    ("KeysAreNames", "", "a_key_may_have_any_bytes"),
    ("VisibleAfterFailure", "", "b083_a_write_without_room_never_becomes_visible"),
    ("DoneWithoutRoom", "", "b083_a_write_without_room_never_becomes_visible"),
    ("TornByAKill", PERSISTENT, "persistent_holds_over_a_kill"),
    ("ForgetsAtTheEnd", PERSISTENT, "persistent_holds_over_the_end_of_a_process"),
    ("SeesOnlyItsOwn", SHARED, "shared_holds"),
    ("MixesProcesses", SHARED, "shared_holds_between_processes"),
    ("CopiesOnRead", ZERO_COPY, "zero_copy_holds"),
    ("ListsWhatItWrote", f"{PERSISTENT}, {LISTS}", "listing_holds_over_a_close"),
    ("ListsWhatItWrote", f"{SHARED}, {LISTS}", "pages_of_another_instance_are_listed"),
    ("ListsHalves", LISTS, "b083_a_write_without_room_never_becomes_visible"),
    ("ForgetsWhenReopened", f"{PERSISTENT}, {DELETES}", "random_calls_agree_with_a_dictionary"),
]
WITH_DAMAGE_OR_FULL = [
    ("ShortIsDone", "b074_a_damaged_page_fails_alone"),
    ("OneBadPageFailsAll", "b074_a_damaged_page_fails_alone"),
    ("OneBadPageRaises", "b074_a_damaged_page_fails_alone"),
    ("DoneWithoutStoring", "b091_a_full_store_fails_pages_and_shows_none_of_them"),
    ("VisibleThoughFull", "b091_a_full_store_fails_pages_and_shows_none_of_them"),
    ("EmptiesItself", "b091_a_full_store_fails_pages_and_shows_none_of_them"),
    ("StaysFull", "b091_a_full_store_fails_pages_and_shows_none_of_them"),
]
DEAD = "a_dead_server_costs_misses_and_nothing_else"
FROZEN = "a_frozen_server_costs_misses_and_nothing_else"
WITH_A_SERVER = [
    ("WaitsForEver", FROZEN),
    ("KeepsTheConnection", FROZEN),
    ("ForgetsToDelete", FROZEN),
    ("AnswersLate", FROZEN),
    ("RetriesForEver", DEAD),
    ("NeverAsksAgain", DEAD),
    ("ErrorsAreTrue", DEAD),
    ("DoneWhileDead", DEAD),
    ("DoneWithoutBytes", DEAD),
    ("EndsTheThread", DEAD),
    ("WaitsForTheRest", "a_server_killed_under_way_costs_misses_and_nothing_else"),
    ("NeverAsksAgain", "a_server_started_anew_while_nobody_calls_is_found_again"),
    ("CloseSaysGoodbye", "close_returns_though_the_server_is_dead"),
    ("CloseWaits", "close_returns_though_the_server_is_frozen"),
]


def test_right_in_memory(failing):
    claims = f"{EVICTS}, {DELETES}, {LISTS}, {NAMED}"
    assert failing(MEMORY.format(name="Memory", claims=claims, arguments="4 << 20")) == set()


def test_right_in_files(failing):
    claims = f"{PERSISTENT}, {SHARED}, {ZERO_COPY}, {DELETES}, {LISTS}"
    assert failing(FILES.format(name="Files", claims=claims)) == set()


@pytest.mark.parametrize(("name", "test"), IN_MEMORY)
def test_wrong_in_memory(failing, name, test):
    source = MEMORY.format(name=name, claims=f"{DELETES}, {LISTS}", arguments="")
    assert failing(source, only=test) == {f"test_{test}"}


@pytest.mark.parametrize(("name", "claims", "test"), IN_FILES)
def test_wrong_in_files(failing, name, claims, test):
    source = FILES.format(name=name, claims=claims)
    assert f"test_{test}" in failing(source, only=test)


def test_right_with_damage_and_when_full(failing):
    assert failing(LIMITED.format(name="Limited", checksums=False), only="b074 or b091") == set()


def test_a_checksum_that_is_claimed_is_tested(failing):
    source = LIMITED.format(name="Limited", checksums=True)
    assert failing(source, only="b074") == {"test_b074_a_damaged_page_fails_alone"}


@pytest.mark.parametrize(("name", "test"), WITH_DAMAGE_OR_FULL)
def test_wrong_with_damage_or_when_full(failing, name, test):
    assert failing(LIMITED.format(name=name, checksums=False), only=test) == {f"test_{test}"}


def test_right_with_a_server(failing):
    assert failing(REMOTE.format(name="Remote", patience_s=10), only="server or shared or close or lists") == set()


@pytest.mark.parametrize(("name", "test"), WITH_A_SERVER)
def test_wrong_with_a_server(failing, name, test):
    assert failing(REMOTE.format(name=name, patience_s=1.5), only=test) == {f"test_{test}"}


def test_named_memory(failing):
    right, wrong = (MEMORY.format(name=name, claims=NAMED, arguments="") for name in ("Named", "OpensItsMemoryLate"))
    assert failing(right, only="named_memory") == set()
    assert failing(wrong, only="named_memory") == {"test_named_memory_holds"}


def test_listing_without_claiming_it_is_noticed(failing):
    source = MEMORY.format(name="Memory", claims=DELETES, arguments="")
    assert failing(source, only="without_lists") == {"test_without_lists_scan_says_so"}


def test_random_calls_that_fail_are_cut_down_to_the_few_that_matter(run_class):
    source = MEMORY.format(name="RefusesRewrite", claims=f"{DELETES}, {LISTS}", arguments="")
    story = run_class(source, "-k", "random and 0").stdout.str()
    few = re.search(r"It fails after: (.*)", story)
    assert few and few[1].count(";") <= 1, story


@pytest.mark.parametrize("name", ["NeverEvicts", "FullIsFailed", "ListsDropped"])
def test_wrong_about_its_limit(failing, name):
    source = MEMORY.format(name=name, claims=f"{EVICTS}, {LISTS}", arguments="4 << 20")
    assert failing(source, only="evicts_holds") == {"test_evicts_holds"}


def test_faults_in_front_of_a_right_storage_are_noticed(failing):
    source = """
class TestSubject(StorageKit):
    @pytest.fixture
    def storage(self):
        return FaultyStorage(storage.Memory(), Faults({fault}))
"""
    assert failing(source.format(fault=""), only="random or large or repeat") == set()
    for fault in ("corrupt=5", "short_read=5", "read_error=5", "lost=5", "write_error=5", "raises=3"):
        found = failing(source.format(fault=fault), only="random and 0")
        assert "test_random_calls_agree_with_a_dictionary" in found, fault

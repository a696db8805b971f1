"""The storage kit passes what is right, and every wrong storage fails the test that is about its fault."""

import pytest

pytest_plugins = ["pytester"]

MEMORY = """
class TestSubject(StorageKit):
    provides = frozenset({{{claims}}})
    limit_bytes = 4 << 20

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


@pytest.mark.parametrize("name", ["NeverEvicts", "FullIsFailed"])
def test_wrong_about_its_limit(failing, name):
    source = MEMORY.format(name=name, claims=EVICTS, arguments="4 << 20")
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
        assert "test_random_calls_agree_with_a_dictionary" in failing(source.format(fault=fault), only="random"), fault

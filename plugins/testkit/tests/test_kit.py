"""A kit cannot be emptied unnoticed: what is refused when pytest collects, and what is not."""

import pytest

pytest_plugins = ["pytester"]

GIVEN = """
    @pytest.fixture
    def policy(self):
        return write.Selective()
"""


def refusal(result):
    result.assert_outcomes(errors=1)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    return result.stdout.str()


def test_a_missing_fixture_is_refused(run_class):
    text = refusal(run_class("class TestSubject(WriteKit):\n    pass\n"))
    assert "TestSubject: define the fixture `policy` in the class" in text
    assert "Traceback" not in text


def test_a_method_that_is_no_fixture_is_refused(run_class):
    text = refusal(run_class("class TestSubject(WriteKit):\n    def policy(self):\n        return write.Selective()\n"))
    assert "TestSubject: define the fixture `policy` in the class" in text


@pytest.mark.parametrize(
    "replacement",
    [
        "def test_it_is_pure(self):\n        assert True",
        "test_it_is_pure = None",
        "@pytest.mark.xfail\n    def test_it_is_pure(self):\n        assert True",
        "@pytest.mark.skip(reason='slow')\n    def test_it_is_pure(self):\n        pass",
        "@property\n    def test_it_is_pure(self):\n        return None",
    ],
)
def test_a_replaced_test_is_refused(run_class, replacement):
    text = refusal(run_class(f"class TestSubject(WriteKit):\n    {replacement}\n{GIVEN}"))
    assert "TestSubject: replaces test_it_is_pure of the kit without pytest.mark.xfail(reason=...)" in text


def test_a_test_replaced_by_a_base_in_front_is_refused(run_class):
    source = "class Easy:\n    def test_it_is_pure(self):\n        pass\nclass TestSubject(Easy, WriteKit):\n"
    assert "replaces test_it_is_pure" in refusal(run_class(source + GIVEN))


def test_a_test_replaced_after_the_class_was_made_is_refused(run_class):
    source = f"class TestSubject(WriteKit):\n{GIVEN}\nTestSubject.test_it_is_pure = lambda self: None\n"
    assert "replaces test_it_is_pure" in refusal(run_class(source))


def test_marking_the_kits_own_test_is_refused(run_class):
    mark = "test_it_is_pure = pytest.mark.xfail(reason='no')(WriteKit.test_it_is_pure)"
    source = f"""
kept = WriteKit.test_it_is_pure
try:
    class TestSubject(WriteKit):
        {mark}
finally:
    del kept.pytestmark
"""
    assert "marks test_it_is_pure of the kit itself" in refusal(run_class(source))


def test_an_expected_failure_with_a_reason_is_accepted(run_class):
    source = """
class TestSubject(WriteKit):
    @pytest.mark.xfail(reason="it counts its calls")
    def test_it_is_pure(self, policy):
        super().test_it_is_pure(policy)

    @pytest.fixture
    def policy(self):
        return write.EverySecond()
"""
    result = run_class(source, "-k", "pure or is_a_write")
    result.assert_outcomes(passed=1, xfailed=1, deselected=4)


def test_fixtures_may_come_from_a_base_and_tests_may_be_added(run_class):
    source = f"""
class Ours(WriteKit):
{GIVEN}
    def test_more(self, policy):
        assert policy.reserve == 0.1

class TestSubject(Ours):
    pass
"""
    run_class(source).assert_outcomes(passed=7)


def test_a_base_without_the_fixture_is_fine_while_it_is_not_collected(run_class):
    source = f"class Ours(WriteKit):\n    pass\nclass TestSubject(Ours):\n{GIVEN}"
    run_class(source).assert_outcomes(passed=6)


def test_a_claim_that_needs_more_is_refused_without_it(run_class):
    source = """
class TestSubject(StorageKit):
    provides = frozenset({Capability.SHARED, Capability.EVICTS})

    @pytest.fixture
    def storage(self):
        return storage.Memory()
"""
    text = refusal(run_class(source))
    assert "TestSubject: define the fixture `reopen` in the class" in text
    assert "TestSubject: claims EVICTS, so say in limit_bytes when the store is full" in text


def test_what_is_not_claimed_is_skipped_by_name(run_class):
    source = (
        "class TestSubject(StorageKit):\n    @pytest.fixture\n    def storage(self):\n        return storage.Plain()\n"
    )
    result = run_class(source, "-rs")
    assert set(result.parseoutcomes()) == {"passed", "skipped"}
    for name in ("PERSISTENT", "SHARED", "EVICTS", "ZERO_COPY", "DELETES", "LISTS", "NAMED_MEMORY"):
        assert f"does not claim {name}" in result.stdout.str()
    for name in ("server", "damage", "fill_up"):
        assert f"the fixture `{name}` is not given" in result.stdout.str()


def test_the_order_of_the_tests_does_not_matter(run_class, pytester):
    """Backwards, in one process and on one policy a test."""
    pytester.makeconftest("def pytest_collection_modifyitems(items):\n    items.reverse()\n")
    source = """
class TestWrite(WriteKit):
    @pytest.fixture
    def policy(self):
        return write.Selective()

class TestEviction(EvictionKit):
    @pytest.fixture
    def policy(self):
        return eviction.Lru()

class TestSchedule(ScheduleKit):
    @pytest.fixture
    def policy(self):
        return schedule.Longest()

class TestStorage(StorageKit):
    @pytest.fixture
    def storage(self):
        return storage.Plain()
"""
    result = run_class(source)
    assert set(result.parseoutcomes()) == {"passed", "skipped"}


def test_failures_are_explained(run_class):
    """The kits' asserts are rewritten, so that values show."""
    source = f"class TestSubject(WriteKit):\n{GIVEN.replace('Selective', 'PercentReserve')}"
    result = run_class(source, "-k", "reserve_is_a_share")
    result.stdout.fnmatch_lines(["E*assert 10 <= 1.0", "E*where 10 = *PercentReserve*.reserve"])

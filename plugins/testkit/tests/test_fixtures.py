"""What the pytest plugin offers: a context, made-up distributions, and a guard against hook calls."""

import importlib
import os
import resource
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import distribution, entry_points, version
from threading import Thread

import pluggy
import pytest

from stepwell import Context
from stepwell.hookspecs import stepwell_stopping
from stepwell.markers import PROJECT, hookimpl
from stepwell_testkit.process import forked

pytest_plugins = ["pytester"]


def test_the_context_is_what_a_factory_gets(context, tmp_path):
    given: Context = context
    assert (given.rank, given.world, given.device) == (0, 1, "cpu")
    assert given.state_dir.is_dir()
    assert tmp_path in given.state_dir.parents
    assert given.clock() <= given.clock()
    given.log.info("said")


def test_a_fake_distribution_looks_installed(fake_dist):
    fake_dist(
        "stepwell-madeup",
        {
            "stepwell_madeup": "ANSWER = 42\n",
            "stepwell_madeup_parts.deep.inner": "from stepwell_madeup import ANSWER\n",
        },
        {"stepwell.v1": {"madeup": "stepwell_madeup", "second": "stepwell_madeup_parts.deep.inner"}},
        version="2.5",
        requires=["stepwell>=0.1,<0.2"],
    )
    assert version("stepwell-madeup") == "2.5"
    assert distribution("stepwell-madeup").requires == ["stepwell>=0.1,<0.2"]
    found = {point.name: point for point in entry_points(group="stepwell.v1")}
    assert found["madeup"].load().ANSWER == 42
    assert found["second"].load().ANSWER == 42
    assert found["madeup"].dist.name == "stepwell-madeup"


def test_a_later_distribution_comes_first_and_files_are_listed(fake_dist):
    for number in ("1.0", "1.1"):
        fake_dist("stepwell-twice", {"stepwell_twice": f"VERSION = {number!r}\n"}, version=number)
    assert version("stepwell-twice") == "1.1"
    assert importlib.import_module("stepwell_twice").VERSION == "1.1"
    assert "stepwell_twice.py" in {str(path) for path in distribution("stepwell-twice").files}


def test_fake_distributions_are_gone_afterwards(pytester):
    pytester.makepyfile("""
        import sys
        from importlib.metadata import PackageNotFoundError, version
        import pytest

        def test_one(fake_dist):
            fake_dist("stepwell-brief", {"stepwell_brief": ""})
            import stepwell_brief

        def test_two():
            assert "stepwell_brief" not in sys.modules
            with pytest.raises(PackageNotFoundError):
                version("stepwell-brief")
    """)
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


class Plugin:
    @hookimpl
    def stepwell_stopping(self, why):
        pass


@pytest.fixture
def manager():
    manager = pluggy.PluginManager(PROJECT)

    class Specs:
        pass

    Specs.stepwell_stopping = staticmethod(stepwell_stopping)
    manager.add_hookspecs(Specs)
    manager.register(Plugin())
    return manager


def test_a_hook_call_inside_fails(no_hooks, manager):
    expected = pytest.raises(pytest.fail.Exception, match="2 hook calls where none may be: stepwell_stopping on thread")
    with expected, no_hooks(manager):
        manager.hook.stepwell_stopping(why="a test")
        manager.hook.stepwell_stopping(why="another")


def test_hook_calls_before_and_after_are_fine(no_hooks, manager):
    manager.hook.stepwell_stopping(why="before")
    with no_hooks(manager):
        pass
    manager.hook.stepwell_stopping(why="after")


def test_a_swallowed_failure_inside_counts_all_the_same(no_hooks, manager):
    with pytest.raises(pytest.fail.Exception), no_hooks(manager), suppress(BaseException):
        manager.hook.stepwell_stopping(why="a test")


def test_an_error_inside_is_not_hidden(no_hooks, manager):
    with pytest.raises(KeyError), no_hooks(manager):
        manager.hook.stepwell_stopping(why="a test")
        raise KeyError("mine")


def test_one_thread_can_be_watched_alone(no_hooks, manager):
    def call():
        manager.hook.stepwell_stopping(why="elsewhere")

    serving, other = Thread(target=call), Thread(target=call)
    with no_hooks(manager, on=serving):
        other.start()
        other.join()
    with pytest.raises(pytest.fail.Exception), no_hooks(manager, on=serving):
        serving.start()
        serving.join()


def test_pytest_starts_without_importing_anything_of_ours():
    """Beyond the plugin's own module."""
    source = (
        "import sys, pytest; pytest.main(['--version', '-p', 'stepwell_testkit_pytest']); "
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('stepwell', 'stepwell_testkit', 'numpy')))"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip().endswith("[]")
    source = "import sys, stepwell_testkit_pytest; print('stepwell' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


def test_a_child_is_heard_in_a_process_of_many_open_files():
    """Descriptors above 1023 are beyond select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("this process may not have so many files open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    null = os.open(os.devnull, os.O_RDONLY)
    held = [os.dup(null) for _ in range(1100)]
    try:
        with forked(lambda child: child.tell()) as child:
            child.hear(1)
            child.finish()
    finally:
        for descriptor in (null, *held):
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

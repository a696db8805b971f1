"""How ranks are started on this machine: which device each has, how many threads, and where they meet."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from stepwell.config import Chosen, environment, launched
from stepwell.engine.making import Place, where
from stepwell.engine.ranks.door import Door
from stepwell.engine.ranks.link import Link
from stepwell.engine.ranks.runner import RanksRunner
from stepwell.engine.ranks.storage import RanksStorage
from stepwell.engine.ranks.wire import Stream, Word
from stepwell.engine.spawn import recipe_of, spawn, start_of, text_of
from stepwell.errors import ConfigError, PluginError
from stepwell.offers import Capability, Offer
from stepwell.private import PrivateFolder
from stepwell.settings import RankSettings, TierSettings

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
ADVICE = "set ranks.tp = 1"
MOST_RANKS = 64
"""Of one group: more than any host has devices, and each is a process."""


def device_of(asked: str, ranks: RankSettings, rank: int) -> str:
    """The device of one rank, given what the runner's settings say."""
    if asked not in ("auto", "cuda") or (ranks.tp * ranks.dp == 1 and not ranks.first_device):
        return asked
    return f"cuda:{ranks.first_device + ranks.group * ranks.tp + rank}"


def threads(ranks: RankSettings, given: Mapping[str, str], cores: int) -> dict[str, str]:
    """The environment of a rank: as it is, and an even share of the cores where it says nothing of threads."""
    share = str(max(1, cores // (ranks.tp * ranks.dp)))
    return {**{name: share for name in THREADS if not any(other in given for other in THREADS)}, **given}


def own_arenas(ranks: RankSettings) -> bool:
    """Whether each rank has host memory, and its way to storage, for itself."""
    return ranks.tp > 1 and (ranks.arena == "own" or ranks.launcher == "external")


def judge(choice: Chosen, ranks: RankSettings) -> None:
    """ConfigError where this runner cannot be several ranks, or cannot be these."""
    device = getattr(choice.settings, "device", None)
    if Capability.RANKS not in choice.provides:
        raise ConfigError(f"{where(choice)} cannot be spread over ranks.tp = {ranks.tp} ranks: {ADVICE}")
    if ranks.tp > MOST_RANKS:
        raise ConfigError(f"ranks.tp = {ranks.tp} is more than the {MOST_RANKS} ranks that one model can have")
    if ranks.launcher == "external" and not ranks.secret:
        raise ConfigError("ranks.launcher = 'external' needs ranks.secret, by which ranks and engine know each other")
    try:
        ranks.secret.encode()
    except UnicodeEncodeError:
        raise ConfigError("ranks.secret has bytes in it that are no text in UTF-8: give other letters") from None
    if isinstance(device, str) and ":" in device:
        raise ConfigError(
            f"runner.device = {device!r} names one device for {ranks.tp} ranks: leave its number out, "
            "and set ranks.first_device"
        )


class Meeting:
    """A private folder in which the ranks of one engine find each other."""

    def __init__(self) -> None:
        self._folder = PrivateFolder("ranks-")

    @property
    def address(self) -> str:
        """What torch.distributed calls an init method."""
        return f"file://{self._folder.path}/meet"

    def close(self) -> None:
        """Remove it."""
        self._folder.close()


def start(choice: Chosen, place: Place, ranks: RankSettings, meet: str, count: int) -> list[Link]:
    """Processes for the first `count` ranks, each told to make its runner. They end with the thread that does this."""
    env = threads(ranks, environment(), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    links: list[Link] = []
    try:
        for rank in range(count):
            own = replace(place, device=device_of(place.device, ranks, rank), rank=rank, world=ranks.tp, meet=meet)
            recipe = recipe_of(choice, own, ADVICE)
            process, end = spawn("stepwell.engine.ranks", f"rank {rank}", f"rank{rank}", env=env)
            links.append(Link(rank, Stream(end), process, f"pid {process.pid}", time.monotonic()))
            links[-1].stream.say(Word.MAKE, start_of(recipe))
    except BaseException:
        for link in links:
            link.kill()
        raise
    return links


def storage_of(runner: RanksRunner, choice: Chosen, place: Place, tiers: TierSettings, wait_s: float) -> RanksStorage:
    """The chosen storage on every rank. One that somebody else started makes that of its own config."""
    offer = Offer(choice.offer.name, choice.offer.make, provides=choice.provides)
    plain = replace(choice, offer=offer)
    recipes = {}
    for link in runner.links:
        if link.remote:
            recipes[link.rank] = choice.offer.name.encode()
            continue
        text = text_of(replace(place, rank=link.rank, world=len(runner.links)))
        try:
            recipes[link.rank] = pickle.dumps((plain, text, tiers))
        except Exception as error:
            raise PluginError(
                f"{where(choice)} cannot be in the process of a rank, since its factory or settings have no name "
                f"there ({error}): set ranks.arena = 'shared'"
            ) from None
    return RanksStorage(runner.calls, recipes, wait_s)


def spread(choice: Chosen, place: Place, ranks: RankSettings) -> RanksRunner:
    """The chosen runner as several ranks, of this machine or of several. Raises what starting one of them raises."""
    own = own_arenas(ranks)
    if ranks.launcher == "external":
        door = Door(choice, ranks, launched(environment()))
        begin: Callable[[], list[Link]] = lambda: door.join(start(choice, place, ranks, door.meet, 1))  # noqa: E731
        after = door.close
    else:
        meeting = Meeting()
        begin, after = partial(start, choice, place, ranks, meeting.address, ranks.tp), meeting.close
    return RanksRunner(begin, timeout_s=ranks.timeout_s, start_s=ranks.start_s, own=own, after=after)

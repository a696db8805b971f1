"""What fits on a device, worked out with plain values, and the host tier's memory made real."""

import errno
import os

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from stepwell import ConfigError, GroupSpec
from stepwell.cache.arena import Arena
from stepwell.types import Full
from stepwell_transformers import host_memory
from stepwell_transformers.host_memory import populate, refused
from stepwell_transformers.memory import GIB, Device, Share, check_weights, made_bytes, peak, weight_bytes
from stepwell_transformers.profile import needed
from stepwell_transformers.random_weights import names, wanted


def device(free: float, total: float = 80) -> Device:
    return Device("cuda:0 (a device)", int(free * GIB), int(total * GIB))


def share(free: float, memory: float = 0.9, step: float = 1.0, graphs: float = 0.5, total: float = 80) -> Share:
    return Share(device(free, total), memory, int(step * GIB), int(graphs * GIB))


def test_pages_get_what_weights_steps_and_graphs_leave_of_the_share():
    assert share(60).pages == pytest.approx((0.9 * 80 - 20 - 1.5) * GIB, abs=2)
    assert share(60, memory=1.0).pages == pytest.approx((60 - 1.5) * GIB, abs=2)
    assert share(5).pages == 0


def test_what_is_left_is_said_with_its_numbers():
    said = str(share(60))
    assert "50.5 GiB for pages, of 80.0 GiB and runner.memory = 0.9" in said
    assert "weights and others 20.0 GiB, steps 1.0 GiB, graphs 512 MiB" in said


def test_a_model_that_leaves_no_room_for_a_prompt_is_refused():
    share(60).check("a model", 2**17)
    with pytest.raises(ConfigError, match=r"leaves room for 0 tokens, of 128\.0 KiB each .* raise runner.memory"):
        share(9.5).check("a model", 2**17)


@pytest.mark.parametrize(
    ("weights", "free", "said"),
    [
        (70, 80, None),
        (
            75,
            80,
            r"take 75.0 GiB .* 80.0 GiB free .*, and runner.memory = 0.9 leaves 72.0 GiB .* raise runner.m",
        ),
        (140, 80, r"take 140.0 GiB .* leaves 72.0 GiB of it: use a smaller model"),
        (40, 30, r"30.0 GiB free of 80.0 GiB, and runner.memory = 0.9 leaves 22.0 GiB of it: end what else runs there"),
    ],
)
def test_weights_are_weighed_before_they_are_loaded(weights, free, said):
    if said is None:
        check_weights("a model", weights * GIB, device(free), 0.9)
        return
    with pytest.raises(ConfigError, match=said):
        check_weights("a model", weights * GIB, device(free), 0.9)


def test_weights_of_a_folder_are_counted_without_being_read(tmp_path):
    save_file({"a": torch.zeros(10, 3, dtype=torch.bfloat16), "b": torch.zeros(5)}, tmp_path / "one.safetensors")
    save_file({"ids": torch.zeros(4, dtype=torch.int64)}, tmp_path / "two.safetensors", metadata={"format": "pt"})
    assert weight_bytes(tmp_path, None) == 60 + 20 + 32
    assert weight_bytes(tmp_path, torch.float32) == 120 + 20 + 32
    assert weight_bytes(tmp_path, torch.bfloat16) == 60 + 10 + 32


def test_weights_of_four_bits_take_what_they_are_unpacked_to(tmp_path):
    packed = {"x_blocks": torch.zeros(2, 8, dtype=torch.uint8), "x_scales": torch.zeros(2, dtype=torch.uint8)}
    save_file(packed, tmp_path / "m.safetensors")
    assert weight_bytes(tmp_path, torch.bfloat16) == 2 * 16 * 2


def test_weights_of_a_random_model_are_counted_without_being_made():
    name = next(name for name in names() if "8b" in name)
    random = wanted(f"random/{name}")
    nbytes = needed(random.folder, torch.bfloat16, random)
    assert 14 < nbytes / 1e9 < 19
    assert needed(random.folder, torch.float32, random) == pytest.approx(2 * nbytes, rel=1e-3)


def test_shared_weights_count_once():
    layer = torch.nn.Linear(10, 10, bias=False)
    assert made_bytes(torch.nn.ModuleList([layer, layer])) == 400


@pytest.fixture
def arena():
    made = Arena.create((GroupSpec("full", Full(), 64, (0,)),), 16, (900,))
    yield made
    made.close()


@pytest.mark.parametrize("by_hand", [False, True])
def test_memory_is_made_real_in_pieces_and_stays_as_it_was(arena, monkeypatch, by_hand):
    monkeypatch.setattr(host_memory, "PIECE", 2**19)
    monkeypatch.setattr(host_memory, "SLICE", 2**18)
    if by_hand:
        monkeypatch.setattr(host_memory, "_advised", lambda: host_memory._touched)
    arena.memory[5_000:5_005] = b"there"
    assert os.fstat(arena.fd).st_blocks * 512 < arena.nbytes // 2
    said = []
    populate(arena, lambda what, done=0, total=0: said.append((what, done, total)))
    assert os.fstat(arena.fd).st_blocks * 512 >= arena.nbytes
    assert [done for _, done, _ in said] == list(range(0, arena.nbytes, 2**19))
    assert bytes(arena.memory[5_000:5_005]) == b"there"
    assert np.count_nonzero(np.frombuffer(arena.memory, np.uint8)) == 5


def test_memory_that_does_not_come_is_said_with_how_much_did(arena, monkeypatch):
    monkeypatch.setattr(host_memory, "PIECE", 2**19)

    def fill(arena, start, length):
        if start >= 2**20:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(host_memory, "_advised", lambda: fill)
    with pytest.raises(ConfigError, match=r"gave 0\.000977 of the .* no more .*lower cache.host_gib"):
        populate(arena, lambda *told: None)


def test_a_refusal_to_pin_says_how_much_may_be_locked():
    said = str(refused(3 * GIB, "code 2"))
    assert "3 GiB cannot be pinned for the device (code 2)" in said
    assert "ulimit -l" in said


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_working_memory_is_the_most_that_is_held_at_once():
    here, held = torch.device("cuda"), torch.empty(2**24, device="cuda")

    def work() -> None:
        for _ in range(3):
            torch.empty(2**22, dtype=torch.uint8, device=here)
        both = [torch.empty(2**22, dtype=torch.uint8, device=here) for _ in range(2)]
        del both

    assert peak(here, work) == 2**23
    assert Device.now(here).total > Device.now(here).free > 0
    del held

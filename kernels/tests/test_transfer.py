"""Copies by every method that works here, against a plain loop over bytes."""

import ctypes
import logging
import mmap
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell_kernels import HostPages, PagePool, PageShape
from stepwell_kernels.transfer import Way, make_mover, make_movers, stages
from stepwell_kernels.transfer import make as making
from stepwell_kernels.transfer.auto import AutoMover
from stepwell_kernels.transfer.layout import layout
from stepwell_kernels.transfer.mover import TorchMover
from stepwell_kernels.transfer.nvrtc import Unavailable, compiled
from stepwell_kernels.transfer.pieces import Copies, pieces, runs
from stepwell_kernels.transfer.plan import divisor

triton_pages = pytest.importorskip("stepwell_kernels.transfer.triton_pages")

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
METHODS = ["auto", "torch", "triton", *(["cuda", "engine"] if GPU else [])]
BEGIN = 4096
"""Where slot 0 is in the arena."""


@dataclass
class Case:
    """A pool and an arena of random bytes, and what to copy."""

    shape: PageShape
    slack: int = 0
    """Bytes between a slot's page and the next slot."""
    pages: int = 5
    slots: int = 6
    count: int = 4
    layer: int | None = None
    seed: int = 0
    parts: int = 1

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.device = self.random.permutation(self.pages)[: self.count].astype(np.int32)
        self.host = self.random.permutation(self.slots)[: self.count].astype(np.int32)

    @property
    def apart(self):
        return self.shape.page_bytes // self.parts + self.slack

    def build(self):
        stride = self.apart * self.parts
        memory = memoryview(mmap.mmap(-1, BEGIN + self.slots * stride + 64))
        memory[:] = self.random.bytes(len(memory))
        pool = PagePool(self.shape, self.pages, DEVICE)
        for side in pool.sides:
            noise = torch.frombuffer(bytearray(self.random.bytes(side.nbytes)), dtype=torch.uint8)
            side.copy_(noise.view(self.shape.dtype).view(side.shape))
        host = HostPages(memory, BEGIN, stride, self.slots, self.shape, self.parts, self.apart)
        if GPU:
            host.pin()
        return pool, host, memory

    def expected(self, way, pool, memory):
        """Bytes of the arena and of the pool's sides after the copy, byte by byte."""
        arena, sides = np.frombuffer(memory, np.uint8).copy(), [octets(side) for side in pool.sides]
        for layer in range(self.shape.layers) if self.layer is None else [self.layer]:
            for page, slot in zip(self.device, self.host, strict=True):
                for part in range(self.parts):
                    at = BEGIN + (slot * self.parts + part) * self.apart
                    at += layer * self.shape.page_bytes // self.shape.layers // self.parts
                    for side in sides:
                        tokens = side[layer, page].reshape(self.shape.page_size, self.parts, -1)[:, part]
                        own = arena[at : at + tokens.size].reshape(tokens.shape)
                        if way is Way.LOAD:
                            tokens[:] = own
                        else:
                            own[:] = tokens
                        at += tokens.size
        return arena, sides

    def check(self, method, way, **options):
        pool, host, memory = self.build()
        try:
            return self._check(method, way, pool, host, memory, options)
        finally:
            host.unpin()

    def _check(self, method, way, pool, host, memory, options):
        arena, sides = self.expected(way, pool, memory)
        mover = make_mover(pool, host, method, **options)
        pairs = mover.pairs(self.device, self.host)
        if self.layer is None:
            (mover.load if way is Way.LOAD else mover.save)(pairs)
        else:
            (mover.load_layer if way is Way.LOAD else mover.save_layer)(self.layer, pairs)
        if GPU:
            torch.cuda.synchronize()
        for side, want in zip(pool.sides, sides, strict=True):
            np.testing.assert_array_equal(octets(side), want)
        np.testing.assert_array_equal(np.frombuffer(memory, np.uint8), arena)
        return mover


def octets(side):
    """[layers, pages, bytes of a piece]."""
    return side.cpu().contiguous().view(torch.uint8).reshape(*side.shape[:2], -1).numpy().copy()


SHAPES = {
    "grouped queries": PageShape(3, 16, 2, 8, torch.bfloat16),
    "page 1": PageShape(4, 1, 1, 8, torch.bfloat16),
    "another dim of V": PageShape(3, 4, 3, 24, torch.float16, 8),
    "latent and rope": PageShape(2, 8, 1, 512, torch.bfloat16, 64),
    "no V": PageShape(2, 8, 1, 72, torch.bfloat16, 0),
    "float32": PageShape(2, 3, 1, 4, torch.float32),
    "not of 16 bytes": PageShape(2, 3, 1, 3, torch.float32, 5),
}


@pytest.mark.parametrize("layer", [None, 1])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("method", METHODS)
def test_every_byte_goes_to_its_place_and_no_other_is_touched(method, way, shape, layer):
    mover = Case(shape, slack=64, layer=layer).check(method, way)
    assert (mover.method == "torch") is (
        shape is SHAPES["not of 16 bytes"] or method == "torch" or method + DEVICE == "autocpu"
    )


PARTED = {
    "grouped queries": PageShape(3, 16, 8, 8, torch.bfloat16),
    "page 1": PageShape(4, 1, 8, 16, torch.bfloat16),
    "another dim of V": PageShape(3, 4, 16, 24, torch.float16, 8),
    "no V": PageShape(2, 8, 8, 72, torch.bfloat16, 0),
    "parts not of 16 bytes": PageShape(2, 3, 8, 2, torch.float16),
}


@pytest.mark.parametrize("layer", [None, 1])
@pytest.mark.parametrize("parts", [2, 4, 8])
@pytest.mark.parametrize("shape", PARTED.values(), ids=PARTED.keys())
@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("method", METHODS)
def test_heads_go_to_the_part_that_is_theirs(method, way, shape, parts, layer):
    """Also on a GPU: all methods, against a plain loop over bytes."""
    mover = Case(shape, slack=64, layer=layer, parts=parts).check(method, way)
    odd = shape.head_dim == 2 and parts > 2
    assert (mover.method == "torch") is (odd or method == "torch" or method + DEVICE == "autocpu")


def test_heads_that_do_not_make_equal_parts_are_refused():
    with pytest.raises(ValueError, match="3 heads do not make 2 equal parts"):
        Case(SHAPES["another dim of V"], parts=2).build()


@st.composite
def cases(draw):
    dims = st.integers(1, 5).map(lambda n: 8 * n)
    dtype = draw(st.sampled_from([torch.bfloat16, torch.float32]))
    value_dim = draw(st.one_of(st.none(), st.just(0), dims))
    layers = draw(st.integers(1, 4))
    shape = PageShape(layers, draw(st.integers(1, 17)), draw(st.integers(1, 3)), draw(dims), dtype, value_dim)
    pages, slots = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    count = draw(st.integers(0, min(pages, slots)))
    layer = draw(st.one_of(st.none(), st.integers(0, layers - 1)))
    parts = draw(st.sampled_from([n for n in (1, 2, 3) if shape.kv_heads % n == 0]))
    return Case(shape, 16 * draw(st.integers(0, 3)), pages, slots, count, layer, draw(st.integers(0, 99)), parts)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases(), st.sampled_from(METHODS), st.sampled_from(list(Way)), st.integers(1, 5))
def test_any_shape_and_any_pages(case, method, way, blocks):
    case.check(method, way, blocks=blocks)


@pytest.mark.skipif(GPU, reason="shrinks the tiles of the interpreter")
@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("blocks", [1, 3, 7])
@pytest.mark.parametrize(
    "shape", [SHAPES["another dim of V"], SHAPES["page 1"]], ids=["cut by tiles", "pages of a tile"]
)
def test_many_tiles_a_program(monkeypatch, way, blocks, shape):
    """A tile ends within a piece, and holds several pages; programs take several tiles and end apart."""
    monkeypatch.setattr(triton_pages, "WARPS", 1)
    monkeypatch.setattr(triton_pages, "UNROLL", 1)
    Case(shape, slack=32, pages=23, slots=29, count=19, parts=shape.kv_heads).check("triton", way, blocks=blocks)


def perform(copies: Copies) -> None:
    for target, source, size in zip(copies.target, copies.source, copies.sizes, strict=True):
        ctypes.memmove(int(target), int(source), int(size))


@pytest.mark.skipif(GPU, reason="addresses of the host")
@pytest.mark.parametrize("layer", [None, 1])
@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize(
    ("shape", "parts"), [*((shape, 1) for shape in SHAPES.values()), *((shape, 4) for shape in PARTED.values())]
)
def test_the_pieces_of_a_copy_engine(shape, parts, way, layer):
    case = Case(shape, slack=32, layer=layer, parts=parts)
    pool, host, memory = case.build()
    arena, sides = case.expected(way, pool, memory)
    first, layers = (0, shape.layers) if layer is None else (layer, 1)
    perform(pieces(way, layout(pool, host), first, layers, case.device, case.host))
    for side, want in zip(pool.sides, sides, strict=True):
        np.testing.assert_array_equal(octets(side), want)
    np.testing.assert_array_equal(np.frombuffer(memory, np.uint8), arena)


@pytest.mark.skipif(GPU, reason="addresses of the host")
@pytest.mark.parametrize(("slack", "first", "layers", "copies"), [(32, 0, 3, 4), (0, 0, 3, 2), (0, 1, 2, 4)])
def test_the_runs_of_a_copy_engine(slack, first, layers, copies):
    """Slots side by side cross in one copy where their pages fill them, and all layers are asked for."""
    case = Case(SHAPES["grouped queries"], slack)
    pool, host, memory = case.build()
    at, slots = layout(pool, host), np.array([1, 2, 3, 5], np.int32)
    staging = np.full(4 * layers * at.layer_bytes + 16, 0xA5, np.uint8)
    asked = runs(Way.LOAD, at, first, layers, slots, staging.ctypes.data)
    assert len(asked.sizes) == copies
    perform(asked)
    stride, begin = case.shape.page_bytes + slack, first * at.layer_bytes
    want = [memory[BEGIN + s * stride + begin :][: layers * at.layer_bytes] for s in slots]
    assert staging[:-16].tobytes() == b"".join(want)
    assert (staging[-16:] == 0xA5).all()
    before = bytes(memory)
    memory[:] = bytes(len(memory))
    perform(runs(Way.SAVE, at, first, layers, slots, staging.ctypes.data))
    assert all(memory[BEGIN + s * stride + begin :][: len(part)] == before[BEGIN + s * stride + begin :][: len(part)]
               for s, part in zip(slots, want, strict=True))  # fmt: skip
    assert sum(np.frombuffer(memory, np.uint8) != 0) <= 4 * layers * at.layer_bytes


@pytest.mark.skipif(GPU, reason="addresses of the host")
@pytest.mark.parametrize(("slack", "copies"), [(32, 16), (0, 2)])
def test_the_runs_of_parts(slack, copies):
    """A copy each, in the order of staging; side by side they cross in one."""
    case = Case(PARTED["grouped queries"], slack, parts=4)
    pool, host, memory = case.build()
    at, slots = layout(pool, host), np.array([1, 2, 3, 5], np.int32)
    staging = np.zeros(4 * 3 * at.layer_bytes, np.uint8)
    asked = runs(Way.LOAD, at, 0, 3, slots, staging.ctypes.data)
    assert len(asked.sizes) == copies
    perform(asked)
    begins = [BEGIN + (slot * 4 + part) * case.apart for slot in slots for part in range(4)]
    assert staging.tobytes() == b"".join(memory[begin:][: 3 * at.part_bytes] for begin in begins)


def test_neighbours_on_one_side_only_are_not_merged():
    ints = lambda *numbers: np.array(numbers, np.uint64)  # noqa: E731
    apart = Copies(ints(0, 10, 20), ints(50, 60, 90), ints(10, 10, 10)).merged()
    assert (apart.target.tolist(), apart.source.tolist(), apart.sizes.tolist()) == ([0, 20], [50, 90], [20, 10])
    none = Copies(ints(), ints(), ints()).merged()
    assert len(none.sizes) == 0


@given(st.integers(1, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_a_divisor_divides(value, number):
    by = divisor(value)
    assert by.magic < 2**32
    assert (number * by.magic // 2**32 + number) < 2**32
    assert (number * by.magic // 2**32 + number) >> by.shift == number // value


def test_ids_out_of_range_are_said_before_anything_is_copied():
    pool, host, _ = Case(SHAPES["page 1"]).build()
    mover = make_mover(pool, host)
    good = np.array([0, 1], np.int32)
    for bad in ([0, 5], [-1, 2]):
        with pytest.raises(IndexError, match="page ids from"):
            mover.pairs(np.array(bad, np.int32), good)
    with pytest.raises(IndexError, match="slot ids from 0 to 6 are not all of 0 to 5"):
        mover.pairs(good, np.array([6, 0], np.int32))
    with pytest.raises(ValueError, match="not pairs"):
        mover.pairs(good, good[:1])
    host.unpin()


@pytest.mark.parametrize(
    ("layers", "sizes"),
    [(1, [1]), (2, [1, 1]), (6, [1, 1, 2, 2]), (32, [1, 1, 2, 4, 8, 8, 8]), (0, [])],
)
def test_layers_that_are_loaded_together(layers, sizes):
    assert [len(some) for some in stages(layers)] == sizes
    assert [layer for some in stages(layers) for layer in some] == list(range(layers))


@pytest.mark.parametrize("method", METHODS)
def test_a_stage_of_layers(method):
    case = Case(PageShape(5, 4, 1, 8, torch.bfloat16), slack=32)
    pool, host, memory = case.build()
    mover = make_mover(pool, host, method)
    before = [octets(side) for side in pool.sides]
    mover.load_layers(range(2, 4), mover.pairs(case.device, case.host))
    case.layer = 2
    want = [side[2].copy() for side in case.expected(Way.LOAD, pool, memory)[1]]
    for side, was, layer in zip(pool.sides, before, want, strict=True):
        np.testing.assert_array_equal(octets(side)[2], layer)
        np.testing.assert_array_equal(octets(side)[[0, 1, 4]], was[[0, 1, 4]])
        assert (octets(side)[3] != was[3]).any()
    host.unpin()


class Recorder(TorchMover):
    """Says what it was asked to copy."""

    def __init__(self, pool, host, method):
        super().__init__(pool, host)
        self.method, self.asked = method, []

    def move(self, way, first, layers, pairs):
        self.asked.append((way, first, layers))


def test_long_runs_go_by_an_engine_and_short_ones_by_a_kernel():
    pool, host, _ = Case(PageShape(4, 16, 8, 256, torch.bfloat16)).build()  # 128 KiB a layer
    kernel, engine = Recorder(pool, host, "kernel"), Recorder(pool, host, "engine")
    mover = AutoMover(pool, host, kernel, engine)
    pairs = mover.pairs(np.array([0], np.int32), np.array([0], np.int32))
    mover.load_layer(2, pairs)
    mover.load_layers(range(1, 3), pairs)
    mover.load(pairs)
    mover.save_layer(3, pairs)
    assert kernel.asked == [(Way.LOAD, 2, 1)]
    assert engine.asked == [(Way.LOAD, 1, 2), (Way.LOAD, 0, 4), (Way.SAVE, 3, 1)]
    assert mover.chosen(Way.LOAD, 1) is kernel
    host.unpin()


def test_what_is_missing_is_passed_over_and_said(monkeypatch, caplog):
    """In the order auto, cuda, triton; then torch."""

    def missing(groups, blocks, cache):
        raise Unavailable("none today")

    pool, host, _ = Case(SHAPES["page 1"]).build()
    monkeypatch.setattr(making, "_MAKERS", dict.fromkeys(["auto", "cuda", "triton"], missing))
    monkeypatch.setattr(making, "_is_cuda", lambda groups: True)
    monkeypatch.setattr(making, "_unfit", lambda at, group: None)
    assert make_mover(pool, host).method == "torch"
    assert "auto: none today; cuda: none today; triton: none today" in caplog.text
    monkeypatch.setitem(making._MAKERS, "triton", lambda groups, blocks, cache: ["a mover", "another"])
    assert make_movers([(pool, host)] * 2) == ["a mover", "another"]
    host.unpin()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("way", Way)
def test_no_pages_are_no_work(method, way):
    Case(SHAPES["page 1"], count=0).check(method, way)


def test_a_pool_and_slots_for_other_pages_do_not_go_together():
    pool, host, _ = Case(SHAPES["page 1"]).build()
    with pytest.raises(ValueError, match="does not go with slots"):
        make_mover(PagePool(replace(pool.shape, page_size=2), 3, DEVICE), host)
    host.unpin()


@pytest.mark.skipif(GPU, reason="works there")
@pytest.mark.parametrize("method", ["cuda", "engine"])
def test_what_needs_a_gpu_is_refused_without_one(method):
    pool, host, _ = Case(SHAPES["page 1"]).build()
    with pytest.raises(ValueError, match=f"cannot be copied by {method}: .*"):
        make_mover(pool, host, method)


def test_the_kernel_compiles_and_is_kept(tmp_path):
    from importlib.resources import files

    source = files("stepwell_kernels.transfer").joinpath("pages.cu").read_text()
    try:
        image = compiled(source, "sm_90", tmp_path)
    except Unavailable as error:
        pytest.skip(str(error))
    (kept,) = tmp_path.iterdir()
    assert kept.read_bytes() == image
    kept.write_bytes(b"what was kept")
    assert compiled(source, "sm_90", tmp_path) == b"what was kept"
    with pytest.raises(Unavailable, match="does not compile"):
        compiled("no C++", "sm_90", tmp_path)


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs CUDA")
def test_pages_of_odd_bytes_and_memory_that_is_not_pinned_go_by_torch(caplog):
    with caplog.at_level(logging.WARNING):
        assert Case(SHAPES["not of 16 bytes"], slack=64).check("cuda", Way.LOAD).method == "torch"
    assert "no multiples of 16" in caplog.text
    pool, host, _ = Case(SHAPES["page 1"]).build()
    host.unpin()
    assert make_mover(pool, host).method == "torch"
    assert "not pinned" in caplog.text


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs CUDA")
@pytest.mark.parametrize("way", Way)
def test_parts_of_staging_take_turns(monkeypatch, way):
    from stepwell_kernels.transfer import engine

    monkeypatch.setattr(engine, "PART_BYTES", 1)  # a page each
    Case(SHAPES["grouped queries"], slack=32, pages=40, slots=50, count=37).check("engine", way)

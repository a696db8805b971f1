"""What is said of a machine, without importing any library."""

import sys

import pytest

from stepwell_kernels.dispatch import fit


def test_a_machine_without_devices(tmp_path):
    assert fit.gpu_missing(tmp_path) == "it needs an NVIDIA GPU, and there is none here: use collective"
    assert "IBGDA" in fit.nic_missing(tmp_path)


def test_a_machine_with_them(tmp_path, monkeypatch):
    (tmp_path / "nvidia0").touch()
    (tmp_path / "mlx5_0").mkdir()
    monkeypatch.setattr(fit, "loads", lambda library: True)
    assert fit.gpu_missing(tmp_path) is None and fit.nic_missing(tmp_path) is None
    monkeypatch.setattr(fit, "loads", lambda library: False)
    assert "libcuda.so.1" in fit.gpu_missing(tmp_path)


@pytest.mark.parametrize(
    ("line", "cuda"),
    [
        ("cuda: Optional[str] = '13.0'", "13.0"),
        ("cuda = '12.8'", "12.8"),
        ("cuda: Optional[str] = None", None),
        ("", None),
    ],
)
def test_the_cuda_of_torch_is_read_from_its_files(tmp_path, monkeypatch, line, cuda):
    (tmp_path / "version.py").write_text(f"__all__ = ['cuda']\ndebug = False\n{line}\n")
    monkeypatch.setattr(fit, "folder", lambda package: tmp_path)
    assert fit.torch_cuda() == cuda
    mismatch = fit.cuda_mismatch("it", "13")
    assert mismatch is None if cuda == "13.0" else mismatch.startswith("it is built for CUDA 13, and torch here for ")


def test_doctor_tells_what_is_not_there_what_does_not_fit_and_what_does_not_load(tmp_path, monkeypatch):
    assert fit.finding("dispatch x", "no_such_package", None).level == "ok"
    (tmp_path / "broken_package.py").write_text("raise RuntimeError('no such symbol')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert fit.finding("dispatch x", "broken_package", "no gpu").text == "dispatch x cannot be used: no gpu"
    found = fit.finding("dispatch x", "broken_package", None)
    assert (found.level, found.text) == ("fail", "broken_package does not load (RuntimeError: no such symbol)")
    assert "broken_package" not in sys.modules
    assert fit.finding("dispatch x", "json", None).level == "ok"

"""What a node says that it is made of, read from made-up kernels and from this one."""

from __future__ import annotations

import subprocess
from pathlib import Path

from dynamo_mlperf.process.checkout import own_commit
from dynamo_mlperf.process.hardware import read_hardware


def _write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_node_is_read_from_the_kernels_files(tmp_path: Path) -> None:
    _write(tmp_path, "proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD EPYC 9575F 64-Core\n")
    _write(tmp_path, "etc/os-release", 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.2 LTS"\n')
    for cpu in range(8):  # two sockets of two cores of two threads
        _write(tmp_path, f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id", f"{cpu // 4}\n")
        _write(tmp_path, f"sys/devices/system/cpu/cpu{cpu}/topology/core_id", f"{cpu // 2 % 2}\n")
    for gpu in ("0000:01:00.0", "0000:02:00.0"):
        _write(tmp_path, f"proc/driver/nvidia/gpus/{gpu}/information", "Model: \t\t NVIDIA GB200\nIRQ: 1\n")
    for disk, sectors in (("nvme0n1", 1000), ("nvme1n1", 2000)):
        _write(tmp_path, f"sys/block/{disk}/size", f"{sectors}\n")
        (tmp_path / f"sys/block/{disk}/device").mkdir()
    _write(tmp_path, "sys/block/loop0/size", "99\n")
    for name, place in (("eth0", "0000:03:00.0"), ("eth1", "0000:03:00.1"), ("ib0", "0000:04:00.0")):
        device = tmp_path / "sys" / "devices" / place
        device.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys/class/net" / name).mkdir(parents=True)
        (tmp_path / "sys/class/net" / name / "device").symlink_to(device)
    (tmp_path / "sys/class/net/lo").mkdir()
    found = read_hardware(tmp_path)
    assert found.pop("memory_bytes") > 0
    assert found.pop("kernel")
    assert found == {
        "cpu": "AMD EPYC 9575F 64-Core",
        "sockets": 2,
        "cores_per_socket": 2,
        "os": "Ubuntu 24.04.2 LTS",
        "accelerators": ["NVIDIA GB200"] * 2,
        "network_cards": 2,
        "storage_bytes": 3000 * 512,
        "storage": ["NVMe SSD"],
    }


def test_what_a_node_does_not_tell_is_left_out(tmp_path: Path) -> None:
    assert set(read_hardware(tmp_path)) == {"memory_bytes", "kernel"}
    for gpu, size in (("0000:01:00.0", 309220868096), ("0000:02:00.0", 309220868096)):
        _write(tmp_path, f"sys/bus/pci/drivers/amdgpu/{gpu}/mem_info_vram_total", f"{size}\n")
    assert read_hardware(tmp_path)["accelerator_memory_bytes"] == 309220868096
    _write(tmp_path, "sys/bus/pci/drivers/amdgpu/0000:03:00.0/mem_info_vram_total", "1\n")
    assert "accelerator_memory_bytes" not in read_hardware(tmp_path), "cards that differ have no one size"


def test_this_node_has_a_processor() -> None:
    found = read_hardware()
    assert found["cpu"]
    assert found["sockets"] >= 1
    assert found["os"]


def test_the_commit_is_that_of_the_checkout_and_says_when_files_differ(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    assert own_commit(package) == "", "no checkout"
    (package / "a.py").write_text("a = 1\n")
    identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
    for words in (["init", "--quiet"], ["add", "."], [*identity, "commit", "--quiet", "-m", "one"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)
    clean = own_commit(package)
    assert len(clean) == 40
    (tmp_path / "notes.txt").write_text("beside the package")
    assert own_commit(package) == clean
    (package / "a.py").write_text("a = 2\n")
    assert own_commit(package) == f"{clean}-dirty"

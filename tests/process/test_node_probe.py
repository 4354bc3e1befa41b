"""What a node says of itself to `doctor`: GPUs, RDMA devices, disks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from dynamo_mlperf.process.node_probe import amd_gpus, disk_speed, nearest_rdma, parse_nvidia, rdma_devices

SMI = """==============NVSMI LOG==============

Driver Version                            : 580.95.05
Attached GPUs                             : 2

GPU 00000008:01:00.0
    Product Name                          : NVIDIA GB200
    Product Brand                         : NVIDIA
    Fabric
        State                             : Completed
        Status                            : Success
        CliqueId                          : 32766
        ClusterUUID                       : 5e0f3b1c-0000-4000-8000-000000000001
        Health
            Bandwidth                     : Full
    Processes
        GPU instance ID                   : N/A
        State                             : not the fabric's

GPU 00000009:01:00.0
    Product Name                          : NVIDIA GB200
    Fabric
        State                             : In Progress
        Status                            : N/A
"""


def test_nvidia_smi_is_read_gpu_by_gpu() -> None:
    one, two = parse_nvidia(SMI)
    assert (one["pci"], one["name"]) == ("0008:01:00.0", "NVIDIA GB200")
    assert (one["fabric"]["State"], one["fabric"]["CliqueId"]) == ("Completed", "32766")
    assert (two["pci"], two["fabric"]["State"]) == ("0009:01:00.0", "In Progress")
    assert parse_nvidia("No devices were found\n") == []


def make_device(root: Path, name: str, pci: str, state: str, link: str = "InfiniBand") -> None:
    where = root / "devices" / pci
    port = where / "infiniband" / name / "ports" / "1"
    port.mkdir(parents=True)
    (port / "state").write_text(f"4: {state}\n")
    (port / "link_layer").write_text(f"{link}\n")
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    (where / "infiniband" / name / "device").symlink_to(where)
    (root / "class" / "infiniband").mkdir(parents=True, exist_ok=True)
    (root / "class" / "infiniband" / name).symlink_to(where / "infiniband" / name)


def test_rdma_devices_and_the_one_nearest_to_a_gpu(tmp_path: Path) -> None:
    make_device(tmp_path, "mlx5_0", "pci0000/0000:00:01.0/0000:01:00.0", "ACTIVE")
    make_device(tmp_path, "mlx5_1", "pci0001/0001:00:01.0/0001:02:00.0", "ACTIVE", "Ethernet")
    make_device(tmp_path, "mlx5_2", "pci0001/0001:00:01.0/0001:01:00.1", "DOWN")
    gpu = tmp_path / "devices" / "pci0001" / "0001:00:01.0" / "0001:01:00.0"
    gpu.mkdir()
    (tmp_path / "bus" / "pci" / "devices").mkdir(parents=True)
    (tmp_path / "bus" / "pci" / "devices" / "0001:01:00.0").symlink_to(gpu)
    found = rdma_devices(tmp_path)
    assert [(device["device"], device["state"], device["link"], device["rate"]) for device in found] == [
        ("mlx5_0:1", "ACTIVE", "InfiniBand", "400 Gb/sec (4X NDR)"),
        ("mlx5_1:1", "ACTIVE", "Ethernet", "400 Gb/sec (4X NDR)"),
        ("mlx5_2:1", "DOWN", "InfiniBand", "400 Gb/sec (4X NDR)"),
    ]
    assert nearest_rdma("0001:01:00.0", found, tmp_path) == "mlx5_1:1"
    assert nearest_rdma("0001:01:00.0", found[2:], tmp_path) is None
    assert rdma_devices(tmp_path / "none") == []


def test_amd_gpus_by_their_driver(tmp_path: Path) -> None:
    driver = tmp_path / "bus" / "pci" / "drivers" / "amdgpu"
    driver.mkdir(parents=True)
    for name in ("0000:05:00.0", "0000:85:00.0", "module", "bind"):
        (driver / name).mkdir()
    assert [gpu["pci"] for gpu in amd_gpus(tmp_path)] == ["0000:05:00.0", "0000:85:00.0"]
    assert amd_gpus(tmp_path / "none") == []


def test_a_disk_is_written_and_read_and_nothing_stays(tmp_path: Path) -> None:
    for directory in (tmp_path / "made", Path("/dev/shm")):
        before = set(directory.glob(".doctor-*")) if directory.exists() else set()
        found = disk_speed(directory, 8)
        assert found["write_bytes_per_s"] > 0
        assert found["read_bytes_per_s"] > 0
        assert set(directory.glob(".doctor-*")) == before
    assert "problem" in disk_speed(Path("/proc/none"), 8)


def test_the_program_prints_one_json_object(tmp_path: Path) -> None:
    argv = (sys.executable, "-m", "dynamo_mlperf.process.node_probe", str(tmp_path), "", "4")
    done = subprocess.run(argv, text=True, capture_output=True, check=True)
    found = json.loads(done.stdout)
    assert found["limits"]["open_files"] > 0
    assert found["shared"] is None
    assert found["local"]["write_bytes_per_s"] > 0

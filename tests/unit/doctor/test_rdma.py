"""Each condition of RDMA and of GPUs, made on a machine that is healthy otherwise."""

from __future__ import annotations

import dataclasses
import errno
import shutil

import pytest
from tests.unit.doctor.machine import BRIDGE, GID_LINK, GPU, NIC, URL, VERBS, Machine, pci_config

from halfstep.doctor.cuda import Cuda
from halfstep.doctor.finding import Severity
from halfstep.doctor.kernel import Kernel
from halfstep.doctor.verbs import Port, Verbs

RDMA = ("RDMA ports", "RDMA addresses", "RDMA packets", "RDMA library", "RDMA by pyverbs")
GPUS = ("GPU driver", "GPUDirect", "PCIe path of GPUs", "IOMMU of GPUs")


@pytest.fixture
def machine(machine: Machine) -> Machine:
    """Where RDMA is wanted."""
    machine.serve(rdma="auto")
    return machine


@pytest.mark.parametrize("state", ["1: DOWN", "2: INIT"])
def test_a_port_that_is_down_is_found(machine: Machine, state: str) -> None:
    machine.write(f"{NIC}/ports/1/state", f"{state}\n")
    found = machine.findings()["rdma-port-down"]
    assert found.value == f"mlx5_0 port 1: {state.split()[1]}"
    assert found.remedy.startswith("`sudo ip link set eth0 up`")


def test_a_port_without_an_address_of_roce_v2_is_found(machine: Machine) -> None:
    machine.write(f"{NIC}/ports/1/gid_attrs/types/1", "IB/RoCE v1\n")
    assert machine.findings()["rdma-no-roce-v2"].value == "mlx5_0 port 1: IB/RoCE v1, RoCE v2"


def test_an_address_of_the_link_alone_finds_no_connection(machine: Machine) -> None:
    machine.write(f"{NIC}/ports/1/gids/1", f"{GID_LINK}\n")
    assert "rdma-no-roce-v2" in machine.findings()


def test_addresses_are_told_as_people_write_them(machine: Machine) -> None:
    assert machine.outcome("RDMA addresses").seen == ("mlx5_0 port 1: GID 1 10.0.0.8 (eth0)",)


def test_an_address_that_goes_meanwhile_is_left_out(machine: Machine) -> None:
    machine.remove(f"{NIC}/ports/1/gid_attrs/types/0")
    assert machine.findings() == {}
    machine.remove(f"{NIC}/ports/1/gid_attrs/types/1")
    assert machine.findings()["rdma-no-roce-v2"].value == "mlx5_0 port 1: no GID"


def test_small_packets_are_found_by_the_library(machine: Machine) -> None:
    port = Port("mlx5_0", 1, "ACTIVE", 1024, 4096)
    machine.kernel.library = dataclasses.replace(machine.kernel.library, ports=(port,))
    machine.kernel.second = (port,)
    found = machine.findings()["rdma-mtu-low"]
    assert (found.value, found.bound) == ("mlx5_0 port 1: 1024 bytes", "4096 bytes, the most of the port")


def test_small_packets_are_found_without_the_library(machine: Machine) -> None:
    machine.kernel.library = Verbs(missing="libibverbs.so.1: cannot open shared object file")
    machine.kernel.second = None
    assert set(machine.findings()) == {"rdma-library-missing"}
    machine.write("/sys/class/net/eth0/mtu", "1500\n")
    machine.write("/sys/class/net/eth0/speed", "10000\n")
    machine.kernel.way = machine.kernel.way._replace(mtu=1500)
    assert set(machine.findings()) == {"rdma-library-missing", "rdma-mtu-low"}


def test_a_library_that_is_too_old_is_found(machine: Machine) -> None:
    machine.kernel.library = dataclasses.replace(machine.kernel.library, too_old=True, version="1.8.28.0")
    assert machine.findings()["rdma-library-old"].value == "1.8.28.0"


def test_a_device_without_a_driver_in_the_library_is_found(machine: Machine) -> None:
    machine.kernel.library = Verbs(version="1.14.50.0")
    machine.kernel.second = ()
    assert machine.findings()["rdma-no-provider"].value == "none for mlx5_0"


def test_a_device_that_this_user_may_not_open_is_found(machine: Machine) -> None:
    machine.kernel.library = dataclasses.replace(machine.kernel.library, refused={"mlx5_0": errno.EACCES})
    assert machine.findings()["rdma-closed"].value == "mlx5_0: EACCES"


def test_a_second_opinion_that_differs_is_found(machine: Machine) -> None:
    machine.kernel.second = (Port("mlx5_0", 1, "DOWN", 4096, 4096),)
    assert "mlx5_0 port 1 DOWN 4096" in machine.findings()["rdma-views-differ"].value
    machine.kernel.second = None
    assert machine.findings() == {}
    assert machine.outcome("RDMA by pyverbs").why_skipped == "pyverbs is not installed (python3-pyverbs)"


def test_a_machine_without_a_device_does_not_even_load_the_library(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(machine.host.path("/sys/class/infiniband"))

    def loaded() -> Verbs:
        raise AssertionError

    monkeypatch.setattr(machine.kernel, "verbs", loaded)
    assert {machine.outcome(check).why_skipped for check in RDMA} == {"this machine has no RDMA device"}


def break_rdma(machine: Machine) -> None:
    """In all ways at once."""
    machine.kernel.library = dataclasses.replace(
        VERBS, too_old=True, refused={"mlx5_0": errno.EACCES}, devices=(), ports=(Port("mlx5_0", 1, "ACTIVE", 1024, 4096),)
    )
    machine.write(f"{NIC}/ports/1/gid_attrs/types/1", "IB/RoCE v1\n")
    copied = machine.host.path(f"{NIC}/ports/2")
    shutil.copytree(machine.host.path(f"{NIC}/ports/1"), copied)
    machine.write(f"{NIC}/ports/2/gid_attrs/types/1", "RoCE v2\n")
    machine.write(f"{NIC}/ports/2/state", "1: DOWN\n")


def test_where_rdma_is_off_its_state_is_seen_and_nothing_is_found(machine: Machine) -> None:
    break_rdma(machine)
    assert {name for name in machine.findings() if name.startswith("rdma")} == {
        "rdma-port-down",
        "rdma-no-roce-v2",
        "rdma-mtu-low",
        "rdma-library-old",
        "rdma-no-provider",
        "rdma-closed",
        "rdma-views-differ",
    }
    machine.serve(rdma="off")
    assert machine.findings() == {}
    assert "mlx5_0 port 2: DOWN; RDMA is off, and needs nothing" in machine.outcome("RDMA ports").seen
    machine.kernel.library = Verbs(missing="libibverbs.so.1: cannot open shared object file")
    assert machine.findings() == {}


def test_a_url_that_asks_for_rdma_wants_it(machine: Machine) -> None:
    machine.serve(rdma="off")
    machine.write(f"{NIC}/ports/1/state", "1: DOWN\n")
    assert machine.findings() == {}
    assert machine.case.answer is not None
    asked = dataclasses.replace(machine.case.answer, url=f"{URL}?transport=rdma")
    machine.case = machine.case.with_answer(asked)
    assert "rdma-port-down" in machine.findings()


@pytest.mark.parametrize("state", ["4: ACTIVE", "1: DOWN"])
def test_a_port_of_infiniband_is_not_looked_at(machine: Machine, state: str) -> None:
    machine.write(f"{NIC}/ports/1/link_layer", "InfiniBand\n")
    machine.write(f"{NIC}/ports/1/state", f"{state}\n")
    machine.write(f"{NIC}/ports/1/gid_attrs/types/1", "IB/RoCE v1\n")
    assert machine.findings() == {}
    (seen,) = machine.outcome("RDMA ports").seen
    assert seen == f"mlx5_0 port 1: {state.split()[1]}, InfiniBand: not used, for RDMA goes over Ethernet here"
    for check in ("RDMA addresses", "RDMA packets"):
        assert machine.outcome(check).why_skipped == "no port of Ethernet is ACTIVE"


def test_a_port_that_nobody_uses_is_no_fault_beside_one_that_works(machine: Machine) -> None:
    shutil.copytree(machine.host.path(f"{NIC}/ports/1"), machine.host.path(f"{NIC}/ports/2"))
    machine.write(f"{NIC}/ports/2/gid_attrs/types/1", "IB/RoCE v1\n")
    assert machine.findings() == {}
    machine.write(f"{NIC}/ports/2/state", "1: DOWN\n")
    assert machine.findings() == {}
    assert "mlx5_0 port 2: DOWN, without an address: not used" in machine.outcome("RDMA ports").seen


def test_a_gpu_without_a_driver_is_found(machine: Machine) -> None:
    machine.kernel.driver = Cuda(missing="libcuda.so.1: cannot open shared object file")
    assert set(machine.findings()) == {"gpu-no-driver"}


def test_a_driver_that_fails_is_found(machine: Machine) -> None:
    machine.kernel.driver = Cuda(error=803, version="13.0")
    found = machine.findings()["gpu-driver-failed"]
    assert (found.value, found.severity) == ("error 803", Severity.ERROR)


def test_a_gpu_that_no_other_device_reaches_is_found(machine: Machine) -> None:
    (gpu,) = machine.kernel.driver.gpus
    machine.kernel.driver = dataclasses.replace(machine.kernel.driver, gpus=(dataclasses.replace(gpu, dma_buf=False),))
    assert set(machine.findings()) == {"gpu-no-peer-memory"}
    assert machine.findings()["gpu-no-peer-memory"].value == "no dma-buf of H100"
    machine.kernel.driver = dataclasses.replace(machine.kernel.driver, gpus=(dataclasses.replace(gpu, gpudirect=False),))
    assert machine.findings()["gpu-no-gpudirect"].value == "H100"


@pytest.mark.parametrize(("control", "found"), [(0x1D, True), (0x04, True), (0x01, False), (0x00, False)])
def test_redirects_above_a_gpu_are_found(machine: Machine, control: int, found: bool) -> None:
    machine.write(f"{BRIDGE}/config", pci_config(control))
    assert set(machine.findings()) == ({"gpu-acs-redirects"} if found else set())


def test_a_configuration_space_that_is_hidden_is_skipped(machine: Machine) -> None:
    machine.write(f"{BRIDGE}/config", "\0" * 64)
    assert "root alone sees all of it" in machine.outcome("PCIe path of GPUs").why_skipped
    machine.write(f"{BRIDGE}/config", "\0" * 256 + "\x01\0\x01\x10" + "\0" * 4)  # a list that leads to itself
    assert machine.findings() == {}


def test_an_iommu_that_translates_for_a_gpu_is_found(machine: Machine) -> None:
    machine.write(f"{GPU}/iommu_group/type", "DMA-FQ\n")
    assert machine.findings()["gpu-iommu"].value == "0000:42:00.0: DMA-FQ"
    machine.write(f"{GPU}/iommu_group/type", "identity\n")
    assert machine.findings() == {}


def test_a_machine_without_a_gpu_says_so(machine: Machine) -> None:
    machine.write(f"{GPU}/class", "0x020000\n")
    assert {machine.outcome(check).why_skipped for check in GPUS} == {"this machine has no GPU of NVIDIA"}


def test_gpus_are_looked_at_where_that_is_asked_for(machine: Machine) -> None:
    machine.kernel.driver = Cuda(error=803)
    machine.case = dataclasses.replace(machine.case, gpu=False)
    assert machine.findings() == {}
    assert not any(one.area == "gpu" for one in machine.outcomes())


def test_the_real_libraries_are_asked_or_said_to_be_missing() -> None:
    kernel = Kernel()
    verbs, cuda = kernel.verbs(), kernel.cuda()
    assert bool(verbs.missing) != bool(verbs.version)
    assert {port.device for port in verbs.ports} <= set(verbs.devices)
    assert cuda.missing or cuda.version

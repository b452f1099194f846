"""URLs and options of connect(): both forms, and a sentence for everything else."""

from __future__ import annotations

import pytest

import halfstep
from halfstep import ConfigError
from halfstep.client.url import Endpoint


@pytest.mark.parametrize(
    ("url", "address", "namespace"),
    [
        ("halfstep://127.0.0.1:7350/default", "127.0.0.1:7350", "default"),
        ("halfstep://flash-1", "flash-1:7350", "default"),
        ("halfstep://flash-1/", "flash-1:7350", "default"),
        ("halfstep://flash-1:9/team%20a", "flash-1:9", "team a"),
        ("halfstep://[::1]:7350/x", "[::1]:7350", "x"),
        ("halfstep://10.0.0.5,10.0.1.5/x", "10.0.0.5,10.0.1.5:7350", "x"),
        ("halfstep://10.0.0.5,10.0.1.5:9/x", "10.0.0.5,10.0.1.5:9", "x"),
        ("halfstep+unix:///run/halfstep.sock", "unix:/run/halfstep.sock", "default"),
        ("halfstep+unix:///run/h.sock?namespace=x", "unix:/run/h.sock", "x"),
    ],
)
def test_both_forms_are_understood(url: str, address: str, namespace: str) -> None:
    assert Endpoint.parse(url) == Endpoint(address, namespace)


@pytest.mark.parametrize("transport", ["auto", "tcp", "rdma"])
def test_a_transport_is_understood(transport: str) -> None:
    assert Endpoint.parse(f"halfstep://flash-1/x?transport={transport}") == Endpoint("flash-1:7350", "x", transport)
    assert Endpoint.parse("halfstep://flash-1/x").transport == "auto"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("127.0.0.1:7350", "scheme"),
        ("http://127.0.0.1:7350", "scheme 'http'"),
        ("halfstep:///x", "no host"),
        ("halfstep://host:0", "port 0"),
        ("halfstep://10.0.0.5,flash-1", "'flash-1', of several hosts, is no IPv4 address"),
        ("halfstep://10.0.0.5,:7350", "'', of several hosts"),
        ("halfstep://10.0.0.5,[::1]:7350", "IPv6"),
        ("halfstep://[::1],10.0.0.5:7350", "IPv6"),
        ("halfstep://" + ",".join(f"10.0.0.{n}" for n in range(9)), "names 9 hosts; at most 8"),
        ("halfstep://host:70000", "range"),
        ("halfstep://host:port", "port"),
        ("halfstep://me@host", "user"),
        ("halfstep://host?x=1", "'x' is unknown"),
        ("halfstep://host?namespace=x", "'namespace' is unknown"),
        ("halfstep://host?transport=ib", "transport=ib: must be one of auto, tcp, rdma"),
        ("halfstep://host?transport=", "must be one of"),
        ("halfstep://host?transport=tcp&transport=rdma", "transport=tcp,rdma"),
        ("halfstep+unix:///run/h.sock?transport=rdma", "'transport' is unknown"),
        ("halfstep://host#x", "fragment"),
        ("halfstep://host/a/b", "slash"),
        ("halfstep://host/" + "n" * 256, "1 to 255"),
        ("halfstep://host/a%0ab", "control character"),
        ("halfstep+unix://run/h.sock", "three slashes"),
        ("halfstep+unix:///" + "p" * 200, "2 to 107"),
        ("halfstep+unix:///run/h.sock?name=x", "'name' is unknown"),
        ("halfstep+unix:///run/h.sock?namespace=a&namespace=b", "2 namespaces"),
    ],
)
def test_a_wrong_url_is_named_with_what_is_wrong(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        Endpoint.parse(url)
    assert url in str(raised.value) or repr(url) in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "halfstep://me:s3cret@host",
        "halfstep://:s3cret@host:7350/ns",
        "halfstep://me:s3cret/x@host",
        "halfstep://me:s3cret#x@host",
        "halfstep://me:s3cret?x@host",
        "halfstep://me:s3cret@s3cret@host",
        "halfstep://me:s3cret://@host",
        "halfstep+unix://me:s3cret@/run/h.sock",
        "http://me:s3cret@host",
        "me:s3cret@host:7350",
        "halfstep://[me:s3cret]/x@host",
        "halfstep://me:s3cret@[::1]:7350/x",
    ],
)
def test_a_password_is_never_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="user, password") as raised:
        Endpoint.parse(url)
    assert "s3cret" not in str(raised.value)
    assert ":***@" in str(raised.value)


@pytest.mark.parametrize("namespace", ["team@home", "a:b@c"])
def test_a_namespace_may_hold_what_stands_before_a_host(namespace: str) -> None:
    assert Endpoint.parse(f"halfstep://host:7350/{namespace}") == Endpoint("host:7350", namespace)
    assert Endpoint.parse(f"halfstep://[::1]:7350/{namespace}") == Endpoint("[::1]:7350", namespace)
    assert Endpoint.parse(f"halfstep://[::1]/{namespace}") == Endpoint("[::1]:7350", namespace)
    assert Endpoint.parse(f"halfstep://host/{namespace}") == Endpoint("host:7350", namespace)
    assert Endpoint.parse(f"halfstep+unix:///h.sock?namespace={namespace}") == Endpoint("unix:/h.sock", namespace)


@pytest.mark.parametrize(
    "url",
    [
        "halfstep://flash-1:7350/default",
        "halfstep://[::1]:8000/team%40home?transport=rdma",
        "halfstep://flash-1:7350/a%3Fb%23c?transport=tcp",
        "halfstep+unix:///run/half%20step/h.sock?namespace=a%26b",
    ],
)
def test_an_endpoint_writes_the_url_that_names_it(url: str) -> None:
    assert Endpoint.parse(url).url == url


@pytest.mark.parametrize("path", ["/run/%ff.sock", "/run/\udcff.sock"])
def test_a_socket_whose_path_is_no_text_is_refused_by_name(path: str) -> None:
    with pytest.raises(ConfigError, match="the socket's path is not UTF-8"):
        Endpoint.parse(f"halfstep+unix://{path}")


@pytest.mark.parametrize(
    ("url", "first"),
    [
        ("halfstep://10.0.0.5,10.0.1.5:9/x", "10.0.0.5:9"),
        ("halfstep://flash-1", "flash-1:7350"),
        ("halfstep://[::1]:9", "[::1]:9"),
        ("halfstep+unix:///run/a,b:c.sock", "unix:/run/a,b:c.sock"),
    ],
)
def test_of_several_hosts_there_is_a_first_one(url: str, first: str) -> None:
    assert Endpoint.parse(url).first_address == first


def test_what_is_no_text_is_no_url() -> None:
    with pytest.raises(ConfigError, match=r"url \(int\): must be text; write halfstep://"):
        halfstep.connect(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mode": "sometimes"}, "mode='sometimes'"),
        ({"connections": 0}, "1 to 16"),
        ({"connections": 17}, "1 to 16"),
        ({"connections": 1.5}, "connections=1.5: must be a whole number"),
        ({"deadline_ms": 0}, "deadline_ms"),
        ({"deadline_ms": float("nan")}, "deadline_ms"),
        ({"match_deadline_ms": 5e6}, "match_deadline_ms"),
        ({"layout": "llama"}, "layout"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_opened(options: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        halfstep.connect("halfstep://127.0.0.1:1", **options)  # type: ignore[arg-type]


def test_the_mode_comes_from_the_environment_where_it_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALFSTEP_MODE", "off")
    with halfstep.connect("halfstep://127.0.0.1:1") as client:
        assert client.mode == "off"
    with halfstep.connect("halfstep://127.0.0.1:1", mode="shadow") as client:
        assert client.mode == "shadow"
    monkeypatch.setenv("HALFSTEP_MODE", "of")
    with pytest.raises(ConfigError, match="HALFSTEP_MODE='of'"):
        halfstep.connect("halfstep://127.0.0.1:1")


def test_errors_are_one_tree_and_config_errors_are_value_errors() -> None:
    for name in ("ConfigError", "Unavailable", "DeviceError", "ProtocolError", "InternalError"):
        assert issubclass(getattr(halfstep, name), halfstep.HalfstepError)
    assert issubclass(ConfigError, ValueError)

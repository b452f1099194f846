"""Where a daemon is, as people write it.

halfstep://host[:port][/namespace][?transport=auto|tcp|rdma]    port 7350, namespace "default"
halfstep://10.0.0.5,10.0.1.5[:port]…                            one daemon, reached over several of its network cards
halfstep+unix:///path/to.sock[?namespace=name]
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qs, quote, unquote, urlsplit

from halfstep.errors import ConfigError

PORT = 7350
DEFAULT_NAMESPACE = "default"
NAMESPACE_BYTES_MAX = 255
HOSTS_MAX = 8
_UNIX_PATH_BYTES_MAX = 107  # sun_path, less its end
TRANSPORTS = ("auto", "tcp", "rdma")
_FORMS = "write halfstep://host[,host][:port][/namespace][?transport=auto|tcp|rdma] or halfstep+unix:///path/to.sock[?namespace=name]"


@dataclass(frozen=True)
class Endpoint:
    """address: "host:port" or "unix:/path", as the core takes it. namespace: whose blocks. A host may be several, with commas.

    transport: over TCP, whether bytes travel through rings over RDMA: "auto" where both ends have a device, "tcp" never,
    "rdma" or not at all.
    """

    address: str
    namespace: str
    transport: str = "auto"

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Errors: ConfigError that names the part that is wrong, and both forms."""
        if not isinstance(url, str):
            raise ConfigError(f"url ({type(url).__name__}): must be text; {_FORMS}")
        if (shown := _without_password(url)) != url:
            raise ConfigError(f"url {shown!r}: takes no user, password or query; {_FORMS}")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"url {url!r}: {error}; {_FORMS}") from None
        if parts.fragment:
            raise ConfigError(f"url {url!r}: has a fragment (#{parts.fragment}), which means nothing here; {_FORMS}")
        if parts.scheme == "halfstep":
            return cls._tcp(url, parts, port)
        if parts.scheme == "halfstep+unix":
            return cls._unix(url, parts)
        raise ConfigError(f"url {url!r}: scheme {parts.scheme!r} is unknown; {_FORMS}")

    @property
    def first_address(self) -> str:
        """The address, or of several hosts that of the first."""
        hosts, port = self.address.rpartition(":")[::2]
        return self.address if self.address.startswith("unix:") else f"{hosts.partition(',')[0]}:{port}"

    @property
    def url(self) -> str:
        """As people write it; parse() gives the same again."""
        namespace = quote(self.namespace, safe="")
        if self.address.startswith("unix:"):
            return f"halfstep+unix://{quote(self.address.removeprefix('unix:'))}?namespace={namespace}"
        query = "" if self.transport == TRANSPORTS[0] else f"?transport={self.transport}"
        return f"halfstep://{self.address}/{namespace}{query}"

    @classmethod
    def _tcp(cls, url: str, parts: SplitResult, port: int | None) -> Endpoint:
        if parts.username is not None:
            raise ConfigError(f"url {url!r}: takes no user or password; {_FORMS}")
        query = parse_qs(parts.query, keep_blank_values=True)
        if unknown := sorted(set(query) - {"transport"}):
            raise ConfigError(f"url {url!r}: {unknown[0]!r} is unknown; only transport= is; {_FORMS}")
        transports = query.get("transport", ["auto"])
        if len(transports) > 1 or transports[0] not in TRANSPORTS:
            raise ConfigError(f"url {url!r}: transport={','.join(transports)}: must be one of {', '.join(TRANSPORTS)}")
        host = parts.hostname
        if not host:
            raise ConfigError(f"url {url!r}: has no host; {_FORMS}")
        if "," in parts.netloc and "[" in parts.netloc:
            raise ConfigError(f"url {url!r}: an IPv6 address among several hosts; they are IPv4 addresses; {_FORMS}")
        if "," in host:
            _check_hosts(url, host.split(","))
        if port == 0:
            raise ConfigError(f"url {url!r}: port 0; must be 1 to 65535, {PORT} if left out")
        namespace = unquote(parts.path.removeprefix("/"))
        bracketed = f"[{host}]" if ":" in host else host
        place = f"{bracketed}:{port or PORT}"
        return cls(place, _checked_namespace(url, namespace or DEFAULT_NAMESPACE), transports[0])

    @classmethod
    def _unix(cls, url: str, parts: SplitResult) -> Endpoint:
        if parts.netloc:
            raise ConfigError(f"url {url!r}: the socket's path begins after three slashes; {_FORMS}")
        try:
            path = unquote(parts.path, errors="strict")
            path.encode()
        except UnicodeError:
            raise ConfigError(f"url {url!r}: the socket's path is not UTF-8; give the socket another name") from None
        if not 1 < len(path.encode()) <= _UNIX_PATH_BYTES_MAX:
            raise ConfigError(
                f"url {url!r}: the path has {len(path.encode())} bytes; "
                f"a socket's has 2 to {_UNIX_PATH_BYTES_MAX}, use a shorter one"
            )
        query = parse_qs(parts.query, keep_blank_values=True)
        if unknown := sorted(set(query) - {"namespace"}):
            raise ConfigError(f"url {url!r}: {unknown[0]!r} is unknown; only namespace= is; {_FORMS}")
        namespaces = query.get("namespace", [DEFAULT_NAMESPACE])
        if len(namespaces) > 1:
            raise ConfigError(f"url {url!r}: names {len(namespaces)} namespaces; a client has one")
        return cls(f"unix:{path}", _checked_namespace(url, namespaces[0]))


def _check_hosts(url: str, hosts: list[str]) -> None:
    """Names are left out: who knows the cards of a daemon knows their addresses."""
    if len(hosts) > HOSTS_MAX:
        raise ConfigError(f"url {url!r}: names {len(hosts)} hosts; at most {HOSTS_MAX}, each a network card of one daemon")
    for host in hosts:
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise ConfigError(f"url {url!r}: {host!r}, of several hosts, is no IPv4 address; {_FORMS}") from None


def _without_password(url: str) -> str:
    """The URL as it may be shown: errors go to logs. A password may hold anything, so all up to the last @ is taken for one."""
    # The colons of an IPv6 host begin no password; what follows it is a port, a namespace, or nothing.
    if re.match(r"(?:[A-Za-z][A-Za-z0-9+.-]*://)?\[[0-9A-Fa-f:.]+(?:%[^\]/@:]*)?\](?::[0-9]{1,5})?/", url):
        return url
    secret = re.match(r"(?P<user>(?:[A-Za-z][A-Za-z0-9+.-]*://)?+[^:/@]*):(?P<password>.*)@", url, re.DOTALL)
    if secret is None or re.match(r"[0-9]{1,5}/", secret["password"]):  # a port, and an @ in the namespace
        return url
    return f"{secret['user']}:***{url[secret.end() - 1 :]}"


def _checked_namespace(url: str, name: str) -> str:
    problem = namespace_fault(name)
    if problem:
        raise ConfigError(f"url {url!r}: namespace {name!r} {problem}")
    return name


def namespace_fault(name: object) -> str:
    """What is wrong with a namespace's name; "" if nothing is."""
    if not isinstance(name, str):
        return f"is no text but a {type(name).__name__}"
    if "/" in name:
        return "has a slash; a namespace is one name, without a path"
    if not 1 <= len(name.encode()) <= NAMESPACE_BYTES_MAX:
        return f"has {len(name.encode())} bytes; must be 1 to {NAMESPACE_BYTES_MAX}"
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in name):
        return "has a control character"
    return ""

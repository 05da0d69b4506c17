"""A real Kubernetes of one node on this machine, reachable from it alone, for drivers of Spark in pods.

`python -m local_stack.kubernetes` starts one, prints the settings for kubectl and runs until it is interrupted. It
needs root, and what `local_stack.kubernetes_build` makes. Its network is a bridge of its own; what the machine's
firewall does with others is left as it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from local_stack.kubernetes_build import (
    BUILT,
    KUBE,
    PAUSE_IMAGE,
    PLUGINS,
    SPARK_IMAGE,
    ClusterMissingError,
    build,
)
from local_stack.processes import PATIENCE, NotReadyError, ServerProcess, SingleServer, free_port, start, wait_until

ROOT = Path(__file__).parent.parent
BRIDGE = "lake-k8s0"
NETWORK = "10.77.0"
GATEWAY = f"{NETWORK}.1"
SERVICES = "10.97.0"
NODE = "lake-node"
START_TIMEOUT_S = 120
API_PORT = 443
"""Of the bridge's address: pods ask `kubernetes.default.svc`, whose address is then the API server's own."""
DAYS = "30"
_RULES = (("-i", BRIDGE), ("-o", BRIDGE))
_KERNEL = tuple(
    Path("/proc/sys") / name
    for name in (
        "kernel/keys/root_maxbytes",
        "kernel/keys/root_maxkeys",
        "kernel/panic",
        "kernel/panic_on_oops",
        "net/ipv4/ip_forward",
        "vm/overcommit_memory",
        "vm/panic_on_oom",
    )
)
"""What a kubelet and the pods' network set for the whole machine."""


@dataclass
class LocalKubernetes(SingleServer):
    """etcd, API server, controllers, scheduler, kubelet, containerd and a DNS server, in an absolute folder.

    Only one can run on a machine.
    """

    folder: Path
    kubelet_port: int = field(default_factory=free_port)
    etcd_port: int = field(default_factory=free_port)
    running: dict[str, ServerProcess] = field(default_factory=dict)
    state: Path = Path("/run/lake-kubernetes")
    """Of sockets, whose paths must be short."""
    kernel: dict[Path, str] = field(default_factory=dict)
    """The machine's settings before."""

    @property
    def address(self) -> str:
        return f"https://{GATEWAY}:{API_PORT}"

    @property
    def admin_config(self) -> Path:
        """The settings for kubectl of who may do everything."""
        return self.folder / "admin.conf"

    def start(self) -> None:
        """Start it and wait until its node is ready. Raises ClusterMissingError, NotReadyError."""
        build()
        self.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.state.mkdir(parents=True, exist_ok=True)
        self.kernel = {path: path.read_text(encoding="utf-8") for path in _KERNEL if path.exists()}
        self._make_network()
        self._make_certificates()
        self._start_containerd()
        self._start_etcd()
        self.start_api_server()
        self._start_controllers()
        self.start_kubelet()
        command = [sys.executable, "-m", "local_stack.kubernetes_dns", GATEWAY, self.address, str(self._pki)]
        self._start("dns", command)
        self.server = self.running["apiserver"]
        self.import_image(PAUSE_IMAGE, BUILT / "pause.tar")
        self.import_image(SPARK_IMAGE, BUILT / "spark.tar")
        wait_until(self._is_node_ready, START_TIMEOUT_S, "the node", list(self.running.values()))

    def stop(self) -> None:
        """End all, and what it has started, and take the network and the kernel's settings back."""
        for name in ("kubelet", "manager", "scheduler", "dns", "apiserver", "etcd"):
            if name in self.running:
                self.running.pop(name).kill()
        self._end_containers()
        if "containerd" in self.running:
            self.running.pop("containerd").stop()
        self._unmount()
        self._remove_network()
        while self.kernel:
            path, value = self.kernel.popitem()
            path.write_text(value, encoding="utf-8")
        shutil.rmtree(self.state, ignore_errors=True)
        self.server = None

    def kill(self) -> None:
        self.stop()

    def kill_server(self, name: str) -> None:
        """Kill -9 one of its processes, as a crash does."""
        self.running.pop(name).kill()

    def start_api_server(self) -> None:
        """Start the API server, and wait until it answers."""
        pki = self._pki
        options = {
            "etcd-servers": self._etcd_url,
            "bind-address": GATEWAY,
            "advertise-address": GATEWAY,
            "secure-port": str(API_PORT),
            "client-ca-file": f"{pki}/ca.crt",
            "tls-cert-file": f"{pki}/apiserver.crt",
            "tls-private-key-file": f"{pki}/apiserver.key",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": f"{pki}/accounts.pub",
            "service-account-signing-key-file": f"{pki}/accounts.key",
            "authorization-mode": "Node,RBAC",
            "service-cluster-ip-range": f"{SERVICES}.0/24",
            "kubelet-client-certificate": f"{pki}/admin.crt",
            "kubelet-client-key": f"{pki}/admin.key",
            "kubelet-certificate-authority": f"{pki}/ca.crt",
            "kubelet-preferred-address-types": "InternalIP",
        }
        self._start_kube("apiserver", options)
        wait_until(self._answers, START_TIMEOUT_S, "the API server", [self.running["apiserver"]])

    def start_kubelet(self) -> None:
        """Start the kubelet."""
        pki = self._pki
        settings = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": GATEWAY,
            "port": self.kubelet_port,
            "readOnlyPort": 0,
            "healthzPort": 0,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{pki}/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": f"{pki}/kubelet.crt",
            "tlsPrivateKeyFile": f"{pki}/kubelet.key",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": "/",
            "failCgroupV1": False,
            "failSwapOn": False,
            # Else its chains stay in the machine's firewall.
            "makeIPTablesUtilChains": False,
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "clusterDNS": [GATEWAY],
            "clusterDomain": "cluster.local",
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            # Images of the cache are not removed for the disk's sake.
            "imageGCHighThresholdPercent": 100,
        }
        config = self.folder / "kubelet.json"
        config.write_text(json.dumps(settings), encoding="utf-8")
        options = {
            "config": str(config),
            "kubeconfig": str(self._write_config("kubelet")),
            "hostname-override": NODE,
            "node-ip": GATEWAY,
            "root-dir": str(self._kubelet_root),
        }
        self._start_kube("kubelet", options)

    def kubectl(self, *arguments: str, given: str = "") -> str:
        """Return what kubectl prints. Raises RuntimeError with what it complains about."""
        command = [str(KUBE), "kubectl", "--kubeconfig", str(self.admin_config), "--request-timeout=20s", *arguments]
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=180)
        if done.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def items(self, kind: str, namespace: str, *selector: str) -> list[dict[str, Any]]:
        """Return the objects of a kind in a namespace."""
        return list(json.loads(self.kubectl("-n", namespace, "get", kind, "-o", "json", *selector))["items"])

    def write_account_config(self, namespace: str, account: str) -> Path:
        """Write the settings for kubectl of a service account, with a token of a day."""
        token = self.kubectl("-n", namespace, "create", "token", account, "--duration=24h").strip()
        return self._write_config(f"{namespace}-{account}", {"token": token})

    def processes_of(self, pod_uid: str) -> Iterator[psutil.Process]:
        """Find the processes of a pod's containers."""
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if pod_uid in Path(f"/proc/{process.pid}/cgroup").read_text(encoding="utf-8"):
                    yield process

    @property
    def _etcd_url(self) -> str:
        return f"http://127.0.0.1:{self.etcd_port}"

    @property
    def _pki(self) -> Path:
        return self.folder / "pki"

    @property
    def _socket(self) -> Path:
        return self.state / "containerd.sock"

    @property
    def _kubelet_root(self) -> Path:
        return self.folder / "kubelet"

    def _start(self, name: str, command: Sequence[str]) -> None:
        self.running[name] = start(name, command, self.folder / "log" / f"{name}.log", cwd=ROOT)

    def _start_kube(self, name: str, options: dict[str, str]) -> None:
        self._start(name, [str(KUBE), name, *(f"--{key}={value}" for key, value in options.items())])

    def _start_etcd(self) -> None:
        peers = f"http://127.0.0.1:{free_port()}"
        options = {
            "data-dir": str(self.folder / "etcd"),
            "listen-client-urls": self._etcd_url,
            "advertise-client-urls": self._etcd_url,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
            "initial-cluster": f"default={peers}",
        }
        self._start_kube("etcd", options)

    def _start_controllers(self) -> None:
        pki = self._pki
        options = {
            "kubeconfig": str(self._write_config("manager")),
            "root-ca-file": f"{pki}/ca.crt",
            "service-account-private-key-file": f"{pki}/accounts.key",
            "use-service-account-credentials": "true",
            "leader-elect": "false",
            "secure-port": "0",
        }
        self._start_kube("manager", options)
        options = {"kubeconfig": str(self._write_config("scheduler")), "leader-elect": "false", "secure-port": "0"}
        self._start_kube("scheduler", options)

    def _start_containerd(self) -> None:
        network = self.folder / "network"
        network.mkdir(exist_ok=True)
        plugin = {
            "cniVersion": "0.4.0",
            "name": "lake",
            "type": "bridge",
            "bridge": BRIDGE,
            "isGateway": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": f"{NETWORK}.0/24", "gateway": GATEWAY}]],
                "dataDir": str(self.folder / "addresses"),
            },
        }
        (network / "10-lake.conf").write_text(json.dumps(plugin), encoding="utf-8")
        cri = 'plugins."io.containerd.grpc.v1.cri"'
        config = self.folder / "containerd.toml"
        config.write_text(
            f'version = 2\nroot = "{BUILT}/images"\nstate = "{self.state}/containerd"\n'
            f'[grpc]\naddress = "{self._socket}"\n'
            f'[{cri}]\nsandbox_image = "{PAUSE_IMAGE}"\nrestrict_oom_score_adj = true\n'
            f'[{cri}.cni]\nbin_dir = "{PLUGINS}"\nconf_dir = "{network}"\n',
            encoding="utf-8",
        )
        self._start("containerd", ["containerd", "--config", str(config)])
        wait_until(self._socket.exists, START_TIMEOUT_S, "containerd", [self.running["containerd"]])

    def import_image(self, name: str, archive: Path) -> None:
        """Let pods use an image, which stays for the clusters after this one. Raises NotReadyError."""
        if name not in self._ctr("images", "list", "--quiet").split():
            self._ctr("images", "import", str(archive))

    def _ctr(self, *arguments: str) -> str:
        command = ["ctr", "--address", str(self._socket), "--namespace", "k8s.io", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        if done.returncode:
            raise NotReadyError(f"{' '.join(command)}: {done.stderr}")
        return done.stdout

    def _answers(self) -> bool:
        with contextlib.suppress(RuntimeError):
            return self.kubectl("get", "--raw", "/readyz") == "ok"
        return False

    def _is_node_ready(self) -> bool:
        with contextlib.suppress(RuntimeError, KeyError):
            node = json.loads(self.kubectl("get", "node", NODE, "-o", "json"))
            states = {each["type"]: each["status"] for each in node["status"]["conditions"]}
            # Pods need the account and the authority that the controllers put into their namespace.
            self.kubectl("-n", "default", "get", "serviceaccount/default", "configmap/kube-root-ca.crt")
            return bool(states["Ready"] == "True")
        return False

    def _make_network(self) -> None:
        _run("ip", "link", "add", BRIDGE, "type", "bridge")
        _run("ip", "address", "add", f"{GATEWAY}/24", "dev", BRIDGE)
        _run("ip", "link", "set", BRIDGE, "up")
        for rule in _RULES:
            # Where Docker runs, what is forwarded is dropped.
            _run("iptables", "-w", "-I", "FORWARD", *rule, "-j", "ACCEPT")

    def _remove_network(self) -> None:
        for rule in _RULES:
            _try("iptables", "-w", "-D", "FORWARD", *rule, "-j", "ACCEPT")
        _try("ip", "link", "delete", BRIDGE)

    def _end_containers(self) -> None:
        """Kill the shims, which outlive containerd, and with them all that is in their containers."""
        deadline_s = time.monotonic() + 30 * PATIENCE
        while found := self._left():
            for process in found:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            if time.monotonic() > deadline_s:
                raise NotReadyError(f"processes {[process.pid for process in found]} do not end")
            time.sleep(0.1)

    def _left(self) -> list[psutil.Process]:
        """Return the shims, and what is in a pod of the kubelet's."""
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            with contextlib.suppress(OSError, psutil.Error):
                is_shim = str(self._socket) in (process.info["cmdline"] or ()) and "containerd-shim" in process.name()
                groups = Path(f"/proc/{process.pid}/cgroup").read_text(encoding="utf-8")
                if (is_shim or "/kubepods/" in groups) and process.info["status"] != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _unmount(self) -> None:
        places = (str(self._kubelet_root), str(self.state), str(BUILT / "images"))
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
        for place in reversed([mount for mount in mounts if mount.startswith(places)]):
            _try("umount", "--lazy", place)
        for name in os.listdir("/var/run/netns") if os.path.isdir("/var/run/netns") else ():
            if name.startswith("cni-"):
                _try("ip", "netns", "delete", name)
        for hierarchy in Path("/sys/fs/cgroup").glob("*/kubepods"):
            for folder, _, _ in os.walk(hierarchy, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)

    def _make_certificates(self) -> None:
        pki = self._pki
        pki.mkdir(exist_ok=True)
        if (pki / "accounts.pub").exists():
            return
        subject = ["-subj", "/CN=lake-local"]
        _run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", DAYS, *subject,
             "-keyout", f"{pki}/ca.key", "-out", f"{pki}/ca.crt")  # fmt: skip
        names = "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:localhost"
        self._sign("apiserver", "/CN=kube-apiserver", f"{names},IP:{GATEWAY},IP:{SERVICES}.1")
        self._sign("admin", "/O=system:masters/CN=admin")
        self._sign("manager", "/CN=system:kube-controller-manager")
        self._sign("scheduler", "/CN=system:kube-scheduler")
        self._sign("kubelet", f"/O=system:nodes/CN=system:node:{NODE}", f"DNS:{NODE},IP:{GATEWAY}")
        _run("openssl", "genrsa", "-out", f"{pki}/accounts.key", "2048")
        _run("openssl", "rsa", "-in", f"{pki}/accounts.key", "-pubout", "-out", f"{pki}/accounts.pub")
        self._write_config("admin")

    def _sign(self, name: str, subject: str, names: str = "DNS:unused") -> None:
        pki = self._pki
        _run("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", subject,
             "-keyout", f"{pki}/{name}.key", "-out", f"{pki}/{name}.csr")  # fmt: skip
        extensions = pki / f"{name}.extensions"
        extensions.write_text(f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n", encoding="utf-8")
        _run("openssl", "x509", "-req", "-in", f"{pki}/{name}.csr", "-CA", f"{pki}/ca.crt", "-CAkey", f"{pki}/ca.key",
             "-CAcreateserial", "-days", DAYS, "-extfile", str(extensions), "-out", f"{pki}/{name}.crt")  # fmt: skip

    def _write_config(self, user: str, login: dict[str, str] | None = None) -> Path:
        """Write the settings for kubectl of a user: with a certificate, unless another login is given."""
        pki = self._pki
        files = {"client-certificate": f"{pki}/{user}.crt", "client-key": f"{pki}/{user}.key"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "local", "cluster": {"server": self.address, "certificate-authority": f"{pki}/ca.crt"}}
            ],
            "users": [{"name": user, "user": files if login is None else login}],
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": user}}],
            "current-context": "local",
        }
        path = self.folder / f"{user}.conf"
        path.write_text(json.dumps(config), encoding="utf-8")
        path.chmod(0o600)
        return path


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise ClusterMissingError(f"{' '.join(command)}: {done.stderr}")


def _try(*command: str) -> None:
    subprocess.run(command, capture_output=True, check=False, timeout=60)


def main() -> int:
    # No folder of this checkout: a kubelet's sockets have long paths of their own.
    cluster = LocalKubernetes(Path(tempfile.mkdtemp(prefix="lake-kubernetes-")))
    print(f"export KUBECONFIG={cluster.admin_config}", flush=True)
    try:
        cluster.serve()
    except (ClusterMissingError, NotReadyError) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(cluster.folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

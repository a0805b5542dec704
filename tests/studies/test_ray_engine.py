"""The Ray engine on a cluster of two nodes, one of which is killed during the run."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

import howsmooth as package
from howsmooth.errors import InputError
from howsmooth.questions.spec import spec_of
from howsmooth.studies import engines as module
from howsmooth.studies import plan, run
from howsmooth.studies.plan import prepare
from howsmooth.studies.run import run_study
from howsmooth.studies.store import Store
from tests import reasons
from tests.paused import start_paused

ray = pytest.importorskip("ray", reason=reasons.extra("ray", "ray"))

HELD = '''
import os, signal, time
from howsmooth.studies.worker import run_bundle

def held(bundle):
    """The real work, leaving a mark for each run. The node to be killed stays in its second run until it is killed;
    the other one waits for that in its first, so that it cannot do all of the work before."""
    import ray
    marks, node = os.environ["MARKS"], ray.get_runtime_context().get_node_id()
    in_flight = os.path.join(marks, "in flight")
    with open(os.path.join(marks, node), "a+") as mark:
        mark.write("x")
        mark.flush()
        mark.seek(0)
        runs = len(mark.read())
    with open(os.path.join(marks, "victim")) as victim:
        to_be_killed = node == victim.read()
    if to_be_killed:
        if runs == 2:
            open(in_flight, "w").close()
            while True:
                signal.pause()
    else:
        while not os.path.exists(in_flight):
            time.sleep(0.02)
    yield from run_bundle(bundle)
'''


@pytest.fixture
def cluster():
    """A head node without CPUs; tasks can run only on nodes that a test adds."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 80 << 20})
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.slow
def test_tasks_of_a_dead_node_are_retried(cluster, declared, tmp_path, monkeypatch):
    (tmp_path / "held_work.py").write_text(HELD)
    marks = tmp_path / "marks"
    marks.mkdir()
    paths = os.pathsep.join([str(tmp_path), *[path for path in sys.path if path]])
    monkeypatch.setenv("PYTHONPATH", paths)
    monkeypatch.setenv("MARKS", str(marks))
    monkeypatch.syspath_prepend(str(tmp_path))
    import held_work

    nodes = [cluster.add_node(num_cpus=1, object_store_memory=80 << 20) for _ in range(2)]
    cluster.wait_for_nodes()
    (marks / "victim").write_text(nodes[1].node_id)
    monkeypatch.setattr(run, "run_bundle", held_work.held)
    study = {**declared, "samples": 8, "lengths": [6, 9, 12], "engine": {"name": "ray", "address": cluster.address}}
    monkeypatch.setitem(plan.MAX_BATCH_TOKENS, "cpu", 48)

    def kill_the_held_node():
        while not (marks / "in flight").exists():
            time.sleep(0.02)
        cluster.remove_node(nodes[1], allow_graceful=False)

    killer = threading.Thread(target=kill_the_held_node, daemon=True)
    killer.start()
    counts = run_study(spec_of(study), tmp_path / "ray.sqlite", connect=True)
    killer.join()
    assert counts == {"planned": 48, "done": 48, "failed": 0, "other": 0}
    runs = [len((marks / node.node_id).read_text()) for node in nodes]
    bundles = len(list(prepare(spec_of(study)).bundles()))
    assert runs[1] == 2 and sum(runs) == bundles + 1, "the lost task ran again, no other did"

    monkeypatch.undo()
    monkeypatch.setitem(plan.MAX_BATCH_TOKENS, "cpu", 48)
    run_study(spec_of({**study, "engine": {"workers": 0}}), tmp_path / "local.sqlite")
    stores = []
    for name in ("ray", "local"):
        with Store.read(tmp_path / f"{name}.sqlite") as store:
            stores.append({record["task"]: record for record in store.records()})
    one, other = stores
    assert one.keys() == other.keys() and len(one) == 48
    for task, record in one.items():
        assert record["value"] == pytest.approx(other[task]["value"], rel=1e-6)
        for name in ("n", "layer", "sample", "status", "seed", "text_sha256"):
            assert record[name] == other[task][name]


def test_a_task_that_fits_on_no_node_is_refused(declared, tmp_path, monkeypatch):
    nodes = [{"Alive": True, "Resources": {"CPU": 2.0}}, {"Alive": False, "Resources": {"CPU": 64.0}}]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    module._check_resources(ray, 2, 0)
    with pytest.raises(InputError, match="8 CPUs and 1 GPUs for one task, got 2 CPUs and 0 GPUs"):
        module._check_resources(ray, 8, 1)


def test_a_missing_cluster_or_ray_itself_is_reported(declared, tmp_path, monkeypatch):
    monkeypatch.setattr(ray, "init", lambda **_: (_ for _ in ()).throw(ConnectionError("nobody there")))
    with pytest.raises(InputError, match=r"Ray cluster at auto, got none .nobody there"):
        list(module.ray_engine([], None, address="auto"))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"howsmooth\[ray\]"):
        list(module.ray_engine([], None))


@pytest.mark.parametrize("address", ["127.0.0.1:{port}", "ray://127.0.0.1:{port}", "127.0.0.1:99999"])
def test_an_address_without_a_listener_is_refused_before_ray_waits(address, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can answer there
        monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray was called"))
        with pytest.raises(InputError, match=r"expected a Ray cluster at .*got none .*correct the address"):
            list(module.ray_engine([], None, address=address.format(port=free.getsockname()[1])))


LISTENERS = """
import os
import stat
from pathlib import Path

def listening(root):
    \"\"\"The local addresses, in hexadecimal, on which a process and those that it started listen.\"\"\"
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:
            pass
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    sockets = set()
    for pid in family:
        try:
            sockets |= {os.readlink(link)[8:-1] for link in Path(f"/proc/{pid}/fd").iterdir()}  # socket:[NUMBER]
        except OSError:
            pass
    rows = [row.split() for table in ("tcp", "tcp6") for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    return sorted({row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in sockets})

class Bundle:
    tasks = ["one"]
    def __init__(self, root): self.root = root
    def without(self, done): return self

def look(bundle):
    import ray, ray._common.usage.usage_lib as usage
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    folder = next(path for path in session.parents if path.name.startswith("howsmooth-ray-"))
    facts = {
        "addresses": listening(bundle.root),
        "folder": str(folder),
        "mode": stat.S_IMODE(folder.stat().st_mode),
        "usage": usage.usage_stats_enabled(),
    }
    yield [("one", facts, None)]
"""
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


@pytest.fixture
def looking(tmp_path, monkeypatch):
    """A module of its own, which Ray's workers import: what a task sees of the cluster that runs it."""
    (tmp_path / "looking.py").write_text(LISTENERS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *[path for path in sys.path if path]]))
    monkeypatch.syspath_prepend(str(tmp_path))
    import looking

    yield looking
    del sys.modules["looking"]


@pytest.fixture
def longest_folder(monkeypatch):
    """A folder for temporary files whose name is as long as Ray's sockets in it allow."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as short:
        folder = Path(short) / ("t" * (module._LONGEST_FOLDER - len(short) - 1))
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        yield folder


def test_a_cluster_of_this_machine_is_private_and_leaves_nothing(looking, longest_folder, monkeypatch):
    if not os.path.exists("/proc/net/tcp"):
        pytest.skip(reasons.device_file("/proc/net/tcp"))
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.1:6379")  # of a cluster that was not asked for
    monkeypatch.delenv(module._CLUSTERS, raising=False)
    ((_, facts, error),) = next(iter(module.ray_engine([looking.Bundle(os.getpid())], looking.look)))
    assert error is None and facts["addresses"] and set(facts["addresses"]) <= LOOPBACK
    assert not facts["usage"]
    assert facts["folder"].startswith(f"{longest_folder}/") and not os.path.exists(facts["folder"])
    assert facts["mode"] == 0o700  # Ray lets everyone write into the folder that it is given
    assert module._CLUSTERS not in os.environ, "a cluster that is started later may be of many machines"


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_cluster_of_this_machine_leaves_nothing_after_a_signal(end, declared, tmp_path):
    """A scheduler sends SIGTERM to Ray's processes as well, and Ray then ends the driver as SIGKILL does."""
    study = tmp_path / "study.toml"
    study.write_text("\n".join(f"{key} = {json.dumps(value)}" for key, value in declared.items() if key != "engine"))
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as short:  # Ray's sockets need a short path
        environment = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1]), "TMPDIR": short}
        process = start_paused(f"study run {study} --engine ray", "howsmooth.studies.store:Store.add", 1, environment)
        assert [folder.name.startswith("howsmooth-ray-") for folder in Path(short).glob("*-ray-*")] == [True]
        process.send_signal(end)
        process.communicate()  # until stderr is closed, which the process that cleans up has open, too
        assert not list(Path(short).glob("*-ray-*"))

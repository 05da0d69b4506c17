"""Files of jobs whose drivers run as another user: their group's, where the administrator gave `work_dir` one."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_lake_provider.execution.engines.job_files import JobFolder, find_text, write_text

GROUP = 23_456
STRANGER = 34_567


@pytest.fixture
def work_dir() -> Iterator[Path]:
    """A folder that another user can reach, which pytest's own is not."""
    folder = Path(tempfile.mkdtemp(prefix="lake-shared-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield folder / "work"
    finally:
        shutil.rmtree(folder)


def files_of_a_job(work_dir: Path) -> JobFolder:
    files = JobFolder(str(work_dir), "run", 1)
    old = os.umask(0o077)
    try:
        write_text(files.request_path, "request")
    finally:
        os.umask(old)
    return files


def test_folder_without_a_group_of_its_own_is_private(work_dir: Path) -> None:
    work_dir.mkdir(mode=0o755)
    assert stat.S_IMODE(os.stat(files_of_a_job(work_dir).request_path).st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as other users")
@pytest.mark.parametrize(("group", "may"), [(GROUP, True), (STRANGER, False)])
def test_driver_of_another_user_reads_its_request_and_leaves_its_result(work_dir: Path, group: int, may: bool) -> None:
    work_dir.mkdir()
    os.chown(work_dir, 0, GROUP)
    work_dir.chmod(0o2770)
    files = files_of_a_job(work_dir)
    script = f'test "$(cat {files.request_path})" = request && echo result > {files.result_path}'
    driver = subprocess.run(["sh", "-c", script], user=STRANGER, group=group, extra_groups=[], check=False)
    assert (driver.returncode == 0, find_text(files.result_path)) == (may, "result\n" if may else None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as other users")
@pytest.mark.parametrize(("group", "may"), [(GROUP, True), (STRANGER, False)])
def test_task_of_another_user_replaces_what_the_first_one_left(work_dir: Path, group: int, may: bool) -> None:
    work_dir.mkdir()
    os.chown(work_dir, 0, GROUP)
    work_dir.chmod(0o2770)
    files = files_of_a_job(work_dir)

    def write_as_another() -> int:
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        try:
            os.setgroups([])
            os.setgid(group)
            os.setuid(STRANGER)
            write_text(files.request_path, "of another")
        except PermissionError:
            os._exit(1)
        os._exit(0)

    assert write_as_another() == (0 if may else 1)
    assert find_text(files.request_path) == ("of another" if may else "request")
    if may:
        assert os.stat(files.request_path).st_uid == STRANGER
        assert stat.S_IMODE(os.stat(files.request_path).st_mode) == 0o640


@pytest.mark.parametrize("is_own", [True, False])
def test_link_in_the_place_of_a_jobs_file_is_replaced_and_not_followed(work_dir: Path, is_own: bool) -> None:
    if not is_own and os.geteuid() != 0:
        pytest.skip("only root can act as other users")
    victim = work_dir.with_name("victim")
    victim.write_text("kept")
    victim.chmod(0o600)
    request = Path(files_of_a_job(work_dir).request_path)
    for make in (os.symlink, os.link):
        request.unlink()
        make(victim, request)
        if make is os.symlink and not is_own:
            os.lchown(request, STRANGER, STRANGER)
        write_text(str(request), "secret")
        assert (victim.read_text(), stat.S_IMODE(victim.stat().st_mode)) == ("kept", 0o600)
        assert (request.read_text(), request.is_symlink()) == ("secret", False)
    assert [path.name for path in request.parent.iterdir()] == [request.name]

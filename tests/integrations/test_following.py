"""States that some ranks find and others do not: nobody waits for anybody."""

from pathlib import Path

import pytest
import torch.distributed as dist
from distributed.ranks import run_ranks
from distributed.training import attach, batch, make_model, train_step
from gradwire.integrations.following import _load_together
from gradwire.states import save_state
from gradwire_compression import StateError

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]


def _look(rank: int, world_size: int, folder: str, is_damaged: bool) -> list[str]:
    """Rank 1 looks into a folder without states, or finds a damaged one."""
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder)
    train_step(ddp, optimizer, batch(rank, 1))
    session.step()
    here = Path(folder) / f"rank {rank}"
    for place in ("rank 0", "rank 1"):
        save_state(session.state_dict(), Path(folder) / place)
    dist.barrier()
    if rank == 1:
        for path in here.iterdir():
            path.write_bytes(b"no state") if is_damaged else path.unlink()
    said = []
    for place in (Path(folder) / "nowhere", here):
        try:
            said.append(f"{_load_together(place, 'model', ddp.process_group)}"[:4])
        except StateError as error:
            said.append(str(error))
    session.close()
    return said


@pytest.mark.parametrize("is_damaged", [False, True], ids=["missing", "damaged"])
def test_all_ranks_refuse_what_one_rank_lacks(tmp_path: Path, is_damaged: bool) -> None:
    (nothing, first), (nothing_either, second) = run_ranks(2, _look, str(tmp_path), is_damaged)
    assert (nothing, nothing_either) == ("None", "None")
    wanted = "rank 1: " if is_damaged else "holds no state for ranks 1"
    assert wanted in first
    assert wanted in second

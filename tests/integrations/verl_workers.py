"""Workers in verl's style, for the environment that holds verl. Importable by Ray's processes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from verl.protocol import DataProto
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, Execute
from verl.single_controller.base.decorator import register as verl_register

from transferqueue.integrations.verl import VerlView, register, share_reads

VOCABULARY = 16
IDS = ["input_ids", "attention_mask", "responses"]


class TinyWorker(Worker):
    """A table of logits by token, trained by plain SGD."""

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    @verl_register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def reset(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.table = torch.randn(VOCABULARY, VOCABULARY, generator=generator, requires_grad=True)

    @verl_register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def weights(self) -> torch.Tensor:
        return self.table.detach().clone()

    def _log_probs(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """[B, R] of the responses, and entropies."""
        length = batch["responses"].size(1)
        logits = self.table[batch["input_ids"][:, -length - 1 : -1]].log_softmax(-1)
        picked = logits.gather(-1, batch["responses"].unsqueeze(-1)).squeeze(-1)
        mask = batch["attention_mask"][:, -length:]
        return picked * mask, -(logits.exp() * logits).sum(-1) * mask


class ActorWorker(TinyWorker):
    """``compute_log_prob`` and ``update_actor`` as verl's workers have them."""

    @register(reads=IDS, writes=["old_log_probs", "entropys"])
    def compute_log_prob(self, data: DataProto) -> DataProto:
        assert isinstance(data, DataProto)
        data = data.to("cpu")
        with torch.no_grad():
            parts = [self._log_probs(part.batch) for part in data.split(2)]
        return DataProto.from_dict(
            tensors={
                "old_log_probs": torch.cat([part[0] for part in parts]),
                "entropys": torch.cat([part[1] for part in parts]),
            },
            meta_info={"temperature": data.meta_info["temperature"]},
        )

    @register(reads=[*IDS, "old_log_probs", "advantages"])
    def update_actor(self, data: DataProto) -> DataProto:
        select = ["input_ids", "attention_mask", "responses", "old_log_probs", "advantages"]
        losses = []
        for part in data.select(batch_keys=select).make_iterator(
            mini_batch_size=2, epochs=1, seed=3
        ):
            log_probs, _ = self._log_probs(part.batch)
            ratio = (log_probs - part.batch["old_log_probs"]).exp()
            loss = -(ratio * part.batch["advantages"]).mean()
            (gradient,) = torch.autograd.grad(loss, self.table)
            self.table.data -= 0.1 * gradient
            losses.append(loss.item())
        return DataProto(meta_info={"metrics": {"actor/loss": sum(losses) / len(losses)}})

    @register(reads=IDS, writes=["later"], blocking=False)
    def compute_without_waiting(self, data: DataProto) -> DataProto:
        return DataProto.from_dict(tensors={"later": data.batch["responses"].float()})

    @register(reads=["later"], writes=["after"], blocking=False)
    def compute_after(self, data: DataProto) -> DataProto:
        return DataProto.from_dict(tensors={"after": data.batch["later"] + 1})

    @register(execute_mode=Execute.RANK_ZERO, reads=IDS)
    def total(self, data: DataProto, times: int = 1) -> int:
        return int(data.batch["responses"].sum()) * times

    @register(execute_mode=Execute.RANK_ZERO, reads=IDS, writes=["alone"], blocking=False)
    def compute_alone(self, data: DataProto) -> DataProto:
        return DataProto.from_dict(tensors={"alone": data.batch["responses"] + self.rank})

    @register(reads=IDS, writes=["bad"])
    def write_wrongly(self, data: DataProto) -> DataProto:
        return DataProto.from_dict(tensors={"worse": data.batch["responses"]})

    @register()
    def touch_undeclared(self, data: DataProto) -> DataProto:
        assert isinstance(data, VerlView)
        return DataProto(meta_info={"metrics": {"sum": int(data.batch["responses"].sum())}})


class CriticWorker(TinyWorker):
    """``compute_values`` and ``update_critic``, by an n-d mesh of one part for all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self._register_dispatch_collect_info(
            "critic", dp_rank=0, is_collect=self.rank == self.world_size - 1
        )

    @verl_register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def share(self, store: str) -> None:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=self.rank,
            world_size=self.world_size,
        )
        share_reads(self, dist.group.WORLD, mesh="critic")

    @register(mesh="critic", reads=["shared"])
    def sum_of_shared(self, data: DataProto) -> DataProto:
        return DataProto(meta_info={"metrics": {"sum": float(data.batch["shared"].sum())}})

    @register(mesh="critic", reads=IDS, writes=["values"])
    def compute_values(self, data: DataProto) -> DataProto:
        with torch.no_grad():
            _, values = self._log_probs(data.batch)
        return DataProto.from_dict(tensors={"values": values}, meta_info={"metrics": {}})

    @register(mesh="critic", reads=[*IDS, "values", "returns"])
    def update_critic(self, data: DataProto) -> DataProto:
        _, values = self._log_probs(data.batch)
        loss = (values - data.batch["returns"]).square().mean()
        (gradient,) = torch.autograd.grad(loss, self.table)
        self.table.data -= 0.1 * gradient
        return DataProto(meta_info={"metrics": {"critic/loss": loss.item()}})

"""The state of a training, and its checkpoints: one safetensors file each.

An epoch's random numbers are drawn from the seed and the epoch's number, and from nothing else.
Only a checkpoint within an epoch holds the state of random generators. A training that was
interrupted and resumed ends at exactly the weights of one that was not.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import InputError
from ..files import below, load_weights, parse_json, read_safetensors, write_safetensors

FORMAT = "leapfactual checkpoint 3"
ADAM_SLOTS = ("step", "exp_avg", "exp_avg_sq")


def reseed(rng: torch.Generator, seed: int, epoch: int) -> None:
    """Seeds the random generator for one epoch."""
    digest = hashlib.sha256(f"{seed} {epoch}".encode()).digest()
    rng.manual_seed(int.from_bytes(digest[:7], "big"))


def _dropout_state(device: torch.device) -> Tensor:
    """Returns the state of torch's own generator, which dropout draws from."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_dropout_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


@dataclass
class TrainingState:
    """Everything that changes in a training: weights, optimizers, running averages, losses.

    Arguments:
        settings: What the training was called with; a checkpoint of other settings is refused.
        data: A fingerprint of what it is trained on; likewise.
        modules: The modules that change, by name.
        optimizers: The optimizer of each module that has one, by the module's name.
        ema: The decay of an exponential moving average of the first module's weights; 0 for none.
            It rises to that: after n steps it is at most (1 + n) / (10 + n), so that the average
            reaches over a tenth of the training and forgets the initial weights.
    """

    settings: Mapping[str, object]
    data: str
    modules: dict[str, nn.Module]
    optimizers: dict[str, Optimizer]
    ema: float = 0.0
    losses: list[float] = field(default_factory=list)
    step: int = 0

    def __post_init__(self) -> None:
        weights = dict(next(iter(self.modules.values())).named_parameters())
        self.weights = weights
        self.averages = {k: v.detach().clone() for k, v in weights.items()} if self.ema else {}
        # A tensor, so that a captured step can count.
        self.steps = torch.zeros((), device=next(iter(weights.values())).device)
        self.total = torch.zeros((), device=self.steps.device)
        self.random: dict[str, Tensor] = {}

    def resume_epoch(self, batches: Iterator[object], rng: torch.Generator) -> Tensor:
        """Goes past the batches that were taken, and returns their summed loss."""
        for _ in islice(batches, self.step):
            pass
        if self.step:
            rng.set_state(self.random["rng"])
            _set_dropout_state(rng.device, self.random["dropout"])
        return self.total.clone()

    def pause_epoch(self, step: int, total: Tensor, rng: torch.Generator) -> None:
        """Notes how far an epoch is, for a checkpoint."""
        self.step, self.total = step, total.clone()
        self.random = {"rng": rng.get_state(), "dropout": _dropout_state(rng.device)}

    def end_epoch(self, loss: float) -> None:
        """Notes that an epoch is over."""
        self.losses.append(loss)
        self.step, self.total, self.random = 0, torch.zeros_like(self.total), {}

    @torch.no_grad()
    def average(self) -> None:
        """Moves the running averages a step towards the weights."""
        if self.averages:
            self.steps += 1
            rate = (9 / (10 + self.steps)).clamp_min(1 - self.ema)
            averages = list(self.averages.values())
            change = torch._foreach_sub(list(self.weights.values()), averages)
            torch._foreach_mul_(change, rate)
            torch._foreach_add_(averages, change)

    @torch.no_grad()
    def is_finite(self) -> bool:
        """Tells whether all weights of the first module are finite numbers."""
        norms = torch._foreach_norm([value.float() for value in self.weights.values()])
        return bool(torch.stack(list(norms)).isfinite().all())

    @torch.no_grad()
    def finish(self) -> None:
        """Makes the running averages the weights."""
        for name, mean in self.averages.items():
            self.weights[name].copy_(mean)

    def write(self, path: Path) -> None:
        """Writes the state to ``path``."""
        tensors = {f"ema/{name}": mean for name, mean in self.averages.items()}
        tensors |= {"steps": self.steps, "total": self.total}
        tensors |= {f"random/{name}": state for name, state in self.random.items()}
        for name, module in self.modules.items():
            for key, value in module.state_dict().items():
                tensors[f"module/{name}/{key}"] = value
        for name, optimizer in self.optimizers.items():
            for key, parameter in self.modules[name].named_parameters():
                for slot, value in optimizer.state[parameter].items():
                    tensors[f"optimizer/{name}/{slot}/{key}"] = value
        metadata = {
            "format": FORMAT,
            "settings": json.dumps(dict(self.settings)),
            "data": self.data,
            "losses": json.dumps(self.losses),
            "step": json.dumps(self.step),
        }
        write_safetensors(tensors, path, metadata)

    def read(self, path: Path) -> None:
        """Restores the state that :meth:`write` wrote to ``path``."""
        metadata, tensors = read_safetensors(path, FORMAT, "Delete it to start anew.")
        try:
            self._compare(path, parse_json(metadata["settings"]), metadata["data"])
            self.losses = [float(loss) for loss in parse_json(metadata["losses"])]
            self.step = int(parse_json(metadata["step"]))
            self.steps.copy_(tensors["steps"])
            self.total.copy_(tensors["total"])
            self.random = below(tensors, "random/")
            for name, mean in self.averages.items():
                mean.copy_(tensors[f"ema/{name}"])
            for name, module in self.modules.items():
                load_weights(module, below(tensors, f"module/{name}/"))
            if not any(key.startswith("optimizer/") for key in tensors):
                raise KeyError("optimizer")
            for name, optimizer in self.optimizers.items():
                for key, parameter in self.modules[name].named_parameters():
                    for slot in ADAM_SLOTS:
                        # Parameters that no gradient has reached have no state.
                        value = tensors.get(f"optimizer/{name}/{slot}/{key}")
                        if value is None:
                            continue
                        # Adam counts its steps on the CPU, unless they can be captured in a CUDA
                        # graph; the rest has its parameter's memory format.
                        if slot == "step":
                            capturable = optimizer.defaults["capturable"]
                            restored = value.to(parameter.device if capturable else "cpu")
                        else:
                            restored = torch.empty_like(parameter).copy_(value)
                        optimizer.state[parameter][slot] = restored.detach()
        except InputError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"the checkpoint {path} does not fit this training ({error}). Delete it to start "
                "anew."
            ) from error

    def _compare(self, path: Path, written: dict[str, object], data: str) -> None:
        current = json.loads(json.dumps(dict(self.settings)))
        differ = [key for key in current if written.get(key) != current[key]]
        if differ:
            old, new = ({k: s.get(k) for k in differ} for s in (written, current))
            raise InputError(
                f"the checkpoint {path} was written with {old}, but this call has {new}. "
                "Resume with the same settings, or delete the checkpoint to start anew."
            )
        if data != self.data:
            raise InputError(
                f"the checkpoint {path} was written for other data. "
                "Resume with the same data, or delete the checkpoint to start anew."
            )

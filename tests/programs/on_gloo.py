"""Several processes with gloo: bn_ext.torch.SyncBatchNorm over samples that are dealt to them.

python on_gloo.py SIZE FOLDER CASE       prints what the processes have found
"""

import datetime
import hashlib
import sys

import torch
import torch.multiprocessing
from torch import distributed
from torch.distributed.fsdp import fully_shard

import bn_ext.torch

SAMPLES = 7


def layer(dtype=torch.float32, **options):
    made = bn_ext.torch.SyncBatchNorm(3, relu=True, dtype=dtype, **options)
    with torch.no_grad():
        made.weight.copy_(torch.tensor([1.5, -0.7, 0.01]))
        made.bias.copy_(torch.tensor([0.1, 0.3, -0.2]))
    return made


def step(made, mine, dtype=torch.float32, memory_format=torch.contiguous_format):
    """dst, diff_src and diff_src_1 of these samples of the batch that all processes share."""
    torch.manual_seed(0)
    batch = torch.randn(3, SAMPLES, 3, 4, 2)
    batch[:, 0] *= 1000
    src, src_1, diff_dst = (
        tensor[mine].to(dtype).contiguous(memory_format=memory_format) for tensor in batch
    )
    src.requires_grad_(), src_1.requires_grad_()
    dst = made(src, src_1)
    dst.backward(diff_dst)
    return dst.detach(), src.grad, src_1.grad


def digests(rank, size):
    """Print a line for each dtype and memory format: one digest, if all deals of samples agree."""
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for memory_format in (torch.contiguous_format, torch.channels_last):
            hashes = set()
            for deal in range(3):
                owners = [(k * k + deal) % size if deal else size - 1 for k in range(SAMPLES)]
                mine = [k for k in range(SAMPLES) if owners[k] == rank]
                made = layer(
                    torch.float64 if dtype == torch.float64 else torch.float32, whole_gradients=True
                )
                results = step(made, mine, dtype, memory_format)
                results += step(made.eval(), mine, dtype, memory_format)
                vectors = [made.weight.grad, made.bias.grad, made.running_mean, made.running_var]
                dealt = [None] * size
                distributed.all_gather_object(dealt, (mine, [r.double() for r in results]))
                rows = {k: [r[i] for r in rs] for ks, rs in dealt for i, k in enumerate(ks)}
                values = [v for k in sorted(rows) for v in rows[k]] + [v.double() for v in vectors]
                together = hashlib.sha256(
                    b"".join(value.contiguous().numpy().tobytes() for value in values)
                )
                hashes.add(together.hexdigest()[:12])
            if rank == 0:
                print(dtype, memory_format, *hashes, flush=True)


def shares(rank, size):
    """What torch computes of the whole batch: dst, gradients, buffers. Of parameters,
    DistributedDataParallel's average of the processes' gradients, times their number.
    """
    alone, mine = torch.nn.BatchNorm2d(3, dtype=torch.float64), range(rank, SAMPLES, size)
    whole = layer(torch.float64)
    alone.load_state_dict(whole.state_dict())
    shared = torch.nn.parallel.DistributedDataParallel(whole)
    for _ in range(2):
        right = step(lambda x, x1: (alone(x) + x1).relu(), range(SAMPLES), torch.float64)
        results = step(shared, mine, torch.float64)
        torch.testing.assert_close(results, tuple(tensor[mine] for tensor in right))
    for parameter, expected in zip(whole.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad * size, expected.grad)
    torch.testing.assert_close([*whole.buffers()], [*alone.buffers()])
    for mode in (True, False):
        summed = layer(torch.float64, whole_gradients=True).train(mode)
        alone.train(mode).zero_grad()
        alone.load_state_dict(summed.state_dict())
        step(lambda x, x1: (alone(x) + x1).relu(), range(SAMPLES), torch.float64)
        step(summed, mine, torch.float64)
        for parameter, expected in zip(summed.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, expected.grad)
    print("shares\n", end="", flush=True)


def elsewhere(rank, size):
    """A default device has no memory; a process is in one of two groups, or gives another thing."""
    groups = [distributed.new_group([process]) for process in range(size)]
    x = torch.randn(2, 3, 4, 4, requires_grad=True)
    for group in (None, groups[rank], groups[rank - 1], "some", 0):
        made = layer(process_group=group)
        torch.set_default_device("meta")
        try:
            made(x).sum().backward()
        except ValueError as error:
            print(f"{error}\n", end="", flush=True)
        torch.set_default_device(None)
        print(f"{int(made.num_batches_tracked)}\n", end="", flush=True)


def sharded(rank, size):
    """Sharded parameters are trained like whole ones."""
    results = []
    for shard in (lambda net: net, fully_shard):
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3),
            bn_ext.torch.BatchNorm2d(4, relu=True),
            torch.nn.Conv2d(4, 3, 3),
            bn_ext.torch.SyncBatchNorm(3),
        )
        shard(net)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.randn(2, 3, 8, 8)).pow(3).mean().backward()
            optimizer.step()
        values = net.state_dict().values()
        results.append([getattr(v, "full_tensor", lambda v=v: v)() for v in values])
    torch.testing.assert_close(*results)
    print("sharded\n", end="", flush=True)


def other_call(broken):
    """What rank 1 does while the others are in the forward pass of a layer of 3 channels."""
    if broken == "backward":
        x = torch.randn(2, 3, 4, 4, requires_grad=True)
        dst = layer()(x)  # with the others
        return dst.sum().backward
    made, x = layer(), torch.randn(2, 3, 4, 4)
    if broken == "channels":
        made, x = bn_ext.torch.SyncBatchNorm(500), torch.randn(2, 500, 4, 4)
    elif broken == "eps":
        made = layer(eps=1e-3)
    elif broken == "dtype":
        x = x.double()
    return lambda: made(x)


def differ(rank, size):
    """Processes are in different calls: all get an error that says so. Afterwards, a step works."""
    for broken in ("channels", "eps", "dtype", "backward"):
        made, x = layer(), torch.randn(2, 3, 4, 4)
        if broken == "backward" and rank != 1:
            made(x)
        before = made.running_mean.clone()
        call = other_call(broken) if rank == 1 else lambda made=made, x=x: made(x)
        try:
            call()
        except RuntimeError as error:
            print(f"{rank} {broken}: {error}\n", end="", flush=True)
        assert torch.equal(made.running_mean, before)
    step(layer(), range(rank, SAMPLES, size))


def main(rank, size, folder, name):
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/{name}{size}",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(minutes=5),
    )
    globals()[name](rank, size)
    distributed.destroy_process_group()


if __name__ == "__main__":
    count, folder, name = sys.argv[1:]
    torch.multiprocessing.start_processes(
        main, (int(count), folder, name), int(count), start_method="fork"
    )

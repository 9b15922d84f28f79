"""dldist.Reducer with parameters of PyTorch: backward passes must average the gradients.
test_torch_ddp_reducer.py tests DDP on top of it."""

import gc
import weakref

import dldist
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from test_reducer import in_groups  # noqa: E402
from thread_ranks import error_of  # noqa: E402

pytestmark = pytest.mark.torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = torch.nn.Linear(4, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)
        generator = torch.Generator().manual_seed(3)  # ranks are threads that share torch's
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def forward(self, x, uses_second=True):
        x = self.first(x)
        return self.third(torch.relu(self.second(x) if uses_second else x))


def data_of(group, step):
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(10 * step + group.rank))


def make(group, net, **options):
    small = {"first_bucket_bytes_cap": 64, "bucket_bytes_cap": 256}
    return dldist.Reducer(net.parameters(), process_group=group, **{**small, **options})


def mean_of_all(group, gradient):
    total = gradient.clone()
    group.all_reduce(total)
    return total / group.size


def expected(group, step, net=None, **options):
    """Return the gradients of a copy without a reducer, averaged one by one."""
    net = net or Net()
    net(data_of(group, step), **options).sum().backward()
    return [None if p.grad is None else mean_of_all(group, p.grad) for p in net.parameters()]


def check(net, gradients):
    for (name, parameter), gradient in zip(net.named_parameters(), gradients, strict=True):
        assert (parameter.grad is None) == (gradient is None), name
        assert gradient is None or torch.equal(parameter.grad, gradient), name


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(
    "options", [{}, {"gradient_as_bucket_view": True}, {"batched_grad_copy": True}, {"bucket_bytes_cap_list": [100, 300]}], ids=str
)
def test_backward_passes_average_gradients(size, options):
    def case(group):
        net = Net()
        reducer = make(group, net, **options)
        for step in range(3):
            net.zero_grad(set_to_none=step != 1)
            output = net(data_of(group, step))
            reducer.prepare_for_backward(output)
            output.sum().backward()
            if size != 3:  # thirds round differently
                check(net, expected(group, step))
        data = reducer.stats()
        assert data["has_rebuilt_buckets"] == 1 and data["iteration"] == 3
        return [p.grad.tolist() for p in net.parameters()]

    results = in_groups(size, case)
    assert results == [results[0]] * size


@pytest.mark.parametrize("is_view", [False, True])
@pytest.mark.parametrize("is_told", [True, False])
def test_unused_parameters_may_differ_between_ranks(is_view, is_told):
    """Rank 1 skips a layer. Without outputs, the end of the backward pass shows unused ones."""

    def case(group):
        net, alone = Net(), Net()
        reducer = make(group, net, find_unused_parameters=True, gradient_as_bucket_view=is_view)
        for step in range(3):
            net.zero_grad()
            output = net(data_of(group, step), uses_second=group.rank == 0)
            reducer.prepare_for_backward([output] if is_told else [])
            output.sum().backward()
            alone.zero_grad()
            alone(data_of(group, step), uses_second=group.rank == 0).sum().backward()
            for reduced, local in zip(net.parameters(), alone.parameters(), strict=True):
                own = torch.zeros_like(local) if local.grad is None else local.grad
                assert torch.equal(reduced.grad, mean_of_all(group, own))

    in_groups(2, case)


def test_gradients_of_parameters_that_no_rank_uses_are_unchanged():
    def case(group, is_view):
        net = Net()
        reducer = make(group, net, find_unused_parameters=True, gradient_as_bucket_view=is_view)
        net.second.bias.grad = torch.full((8,), group.rank + 1.0)
        for step in range(2):
            output = net(data_of(group, step), uses_second=False)
            reducer.prepare_for_backward(output)
            output.sum().backward()
            assert net.second.weight.grad is None and net.second.bias.grad.tolist() == [group.rank + 1.0] * 8

    in_groups(2, case, False)
    in_groups(2, case, True)


@pytest.mark.parametrize("is_view", [False, True])
def test_first_pass_determines_the_used_parameters_of_a_static_graph(is_view):
    """The first backward pass must determine unused parameters and the calls of each hook."""

    def case(group):
        net = Net()
        reducer = make(group, net, static_graph=True, gradient_as_bucket_view=is_view)
        for step in range(4):
            net.zero_grad()
            x = data_of(group, step)
            output = net(x, uses_second=False) + torch.utils.checkpoint.checkpoint(net.first, x, use_reentrant=False).sum()
            reducer.prepare_for_backward(output)
            output.sum().backward()
            assert net.second.weight.grad is None and not reducer._is_open
            assert torch.equal(net.third.weight.grad, expected(group, step, uses_second=False)[4])
        assert reducer.stats()["has_rebuilt_buckets"] == 1

    in_groups(2, case)


@pytest.mark.parametrize("how", ["without prepare_for_backward", "in no_sync"])
def test_passes_without_synchronisation_accumulate_gradients(how):
    def case(group):
        net, alone = Net(), Net()
        reducer = make(group, net, find_unused_parameters=True)
        for step in range(3):
            output = net(data_of(group, step), uses_second=step == 0)
            alone(data_of(group, step), uses_second=step == 0).sum().backward()
            if step == 2:
                reducer.prepare_for_backward(output)
                output.sum().backward()
            elif how == "in no_sync":
                with reducer.no_sync():
                    reducer.prepare_for_backward(output)
                    output.sum().backward()
            else:
                output.sum().backward()
        check(net, [mean_of_all(group, p.grad) for p in alone.parameters()])

    in_groups(2, case)


def test_missing_gradient_is_named_by_the_next_pass():
    def case(group):
        net = Net()
        reducer = make(group, net, param_to_name_mapping=dict(enumerate(name for name, _ in net.named_parameters())))
        net(data_of(group, 0))
        reducer.prepare_for_backward()
        reducer.prepare_for_backward()  # nothing has started; more forward passes may follow
        net(data_of(group, 0), uses_second=False).sum().backward()
        text = str(error_of(reducer.prepare_for_backward))
        assert "Expected to have finished reduction in the prior iteration" in text
        assert "2 (second.weight), 3 (second.bias) have no gradient" in text
        reducer.reset()

    in_groups(2, case)


def test_rows_of_sparse_gradients_must_be_those_of_the_first_pass():
    def case(group):
        embedding = torch.nn.Embedding(6, 2, sparse=True)
        reducer = dldist.Reducer(
            embedding.parameters(), process_group=group, expect_sparse_gradients=[True], param_to_name_mapping={0: "weight"}
        )
        for rows in (None, torch.tensor([0, 1, 4])):
            embedding.weight.grad = None
            if rows is not None:
                reducer._set_sparse_metadata({"weight": rows})
            output = embedding(torch.tensor([group.rank, 4]))
            reducer.prepare_for_backward(output)
            output.sum().backward()
            grad = embedding.weight.grad
            assert grad.is_sparse and grad.to_dense()[:, 0].tolist() == [0.5, 0.5, 0, 0, 1, 0]
        output = embedding(torch.tensor([5]))
        reducer.prepare_for_backward(output)
        assert "has unexpected rows" in str(error_of(output.sum().backward))
        reducer.reset()

    in_groups(2, case)


def test_reducer_with_autograd_rejects_wrong_arguments():
    parameter = torch.zeros(2, requires_grad=True)
    with dldist.Group(None, 0, 1) as group:
        reducer = dldist.Reducer([parameter], process_group=group)
        with pytest.raises(TypeError, match="must be tensors of PyTorch, not int"):
            reducer.prepare_for_backward([0])
        with pytest.raises(ValueError, match="another length: got 2, expected 1"):
            dldist.Reducer([parameter], process_group=group, expect_sparse_gradients=[True, False])
        with pytest.raises(ValueError, match="sample_rate"):
            reducer._set_ddp_runtime_logging_sample_rate(0)
        by_hand = dldist.Reducer([torch.zeros(2)], process_group=group)
        for call in (by_hand._delay_all_reduce, by_hand._set_optimizer_in_backward, lambda: by_hand._install_post_backward_futures([])):
            assert "no hooks in autograd" in str(error_of(call))
        reducer.prepare_for_backward()
        (parameter * 2).sum().backward()
        assert parameter.grad.tolist() == [2, 2]


def test_reducer_works_without_autograd_hooks():
    with dldist.Group(None, 0, 1) as group:
        for use_python_reducer in (False, True):
            parameter = torch.zeros(2, requires_grad=True)
            reducer = dldist.Reducer([parameter], process_group=group, use_python_reducer=use_python_reducer)
            reducer._remove_autograd_hooks()
            reducer.prepare_for_backward()
            parameter.sum().backward()
            assert reducer._is_open
            reducer.mark_ready(0, parameter.grad)
            reducer.finish()
            assert reducer.gradient(0) is parameter.grad


def test_gradients_used_by_an_optimizer_in_backward_stay_none():
    """Gradients that the optimizer consumed must stay unset; installed futures be waited for."""

    class Waited:
        count = 0

        def wait(self):
            self.count += 1

    with dldist.Group(None, 0, 1) as group:
        parameter = torch.zeros(2, requires_grad=True)
        reducer = dldist.Reducer([parameter], process_group=group)
        reducer._set_optimizer_in_backward()
        waited = Waited()
        reducer._install_post_backward_futures([waited])

        def hook(state, bucket):
            bucket.parameters()[0].grad = None
            return bucket.buffer()

        reducer.register_comm_hook(None, hook)
        reducer.prepare_for_backward()
        parameter.sum().backward()
        assert parameter.grad is None and waited.count == 1


def test_gradients_of_lower_precision_use_buckets_of_their_own_dtype():
    """Parameters whose data is float16 during the passes must use float16 buckets."""

    def case(group):
        parameter = torch.zeros(4, requires_grad=True)
        reducer = dldist.Reducer([parameter], process_group=group)
        reducer._remove_autograd_hooks()
        reducer._set_mixed_precision_param_dtype(torch.float16)
        seen = []
        reducer.register_comm_hook(group, lambda state, bucket: seen.append(bucket.buffer().dtype) or state.all_reduce(bucket.memory, async_op=True))
        parameter.data = parameter.data.half()
        (node, _), = parameter.expand_as(parameter).grad_fn.next_functions
        node.register_hook(lambda *_: reducer._autograd_hook(0))
        reducer.prepare_for_backward()
        (parameter * (group.rank + 1)).sum().backward()
        assert seen == [torch.float16] and parameter.grad.dtype is torch.float16
        return parameter.grad.tolist()

    assert in_groups(2, case) == [[3.0] * 4] * 2


def test_reducer_is_released_with_its_last_user():
    with dldist.Group(None, 0, 1) as group:
        net = Net()
        reducer = make(group, net)
        output = net(torch.ones(1, 4))
        reducer.prepare_for_backward(output)
        output.sum().backward()
        gone = weakref.ref(reducer)
        gc.disable()
        try:
            del reducer
            assert gone() is None, "nothing waits for a collector"
        finally:
            gc.enable()
        net(torch.ones(1, 4)).sum().backward()


def test_durations_are_measured_only_in_sampled_passes():
    with dldist.Group(None, 0, 1) as group:
        parameter = torch.zeros(2, requires_grad=True)
        reducer = dldist.Reducer([parameter], process_group=group)
        reducer._set_ddp_runtime_logging_sample_rate(100)
        for _ in range(15):
            reducer.prepare_for_backward()
            parameter.sum().backward()
        assert reducer.stats()["iteration"] == 15 and reducer._times._samples == 10


# ---- passes ended by the caller


def start(reducer, net, group, step, *, has_outputs=True, **options):
    output = net(data_of(group, step), **options)
    reducer.prepare_for_backward(output if has_outputs else ())
    return output


@pytest.mark.parametrize("options", [{}, {"lazy_bucket_allocation": True}, {"gradient_as_bucket_view": True}], ids=str)
def test_manual_finalization_leaves_the_end_of_a_pass_to_the_caller(options):
    def case(group):
        net = Net()
        reducer = make(group, net, **options)
        reducer._set_manual_finalization_required(True)
        for step in range(3):
            output = start(reducer, net, group, step)
            assert reducer._should_finalize_after_backward() is (step == 0), "buckets are rebuilt after the first pass"
            output.sum().backward()
            assert reducer._is_open
            reducer._finalize_backward_manual()
            check(net, expected(group, step))
            net.zero_grad()
        reducer._set_manual_finalization_required(False)
        start(reducer, net, group, 3).sum().backward()
        assert not reducer._is_open
        check(net, expected(group, 3))

    in_groups(2, case)


def test_manual_finalization_works_in_a_backward_hook():
    def case(group):
        net = Net()
        reducer = make(group, net)
        start(reducer, net, group, 0).sum().backward()
        net.zero_grad()
        reducer._set_manual_finalization_required(True)
        output = start(reducer, net, group, 1)
        assert reducer._should_finalize_after_backward() is False
        nodes = [torch.autograd.graph.get_gradient_edge(parameter).node for parameter in net.parameters()]
        ended = []

        def end(*_):
            if reducer._next_index == len(reducer._buckets) and not ended:
                ended.append(True)
                reducer._finalize_backward_manual()

        for node in nodes:
            node.register_hook(end)
        output.sum().backward()
        assert ended and not reducer._is_open
        check(net, expected(group, 1))

    in_groups(2, case)


def test_manual_finalization_works_with_unused_parameters_and_static_graphs():
    def case(group):
        for options, has_outputs in (
            ({"find_unused_parameters": True}, True),
            ({"find_unused_parameters": True}, False),
            ({"static_graph": True}, True),
        ):
            net = Net()
            reducer = make(group, net, **options)
            reducer._set_manual_finalization_required(True)
            for step in range(2):
                output = start(reducer, net, group, step, has_outputs=has_outputs, uses_second=False)
                is_late = not has_outputs or ("static_graph" in options and step == 0)
                assert reducer._should_finalize_after_backward() is is_late, (options, step)
                output.sum().backward()
                reducer._finalize_backward_manual()
                check(net, expected(group, step, uses_second=False))
                net.zero_grad()

    in_groups(2, case)


def test_calls_that_misuse_manual_finalization_are_rejected():
    with dldist.Group(None, 0, 1) as group:
        net = Net()
        reducer = make(group, net)
        with pytest.raises(RuntimeError, match=r"_finalize_backward_manual\(\): autograd ends passes"):
            reducer._finalize_backward_manual()
        reducer._set_manual_finalization_required(True)
        with pytest.raises(RuntimeError, match="no pass to end"):
            reducer._finalize_backward_manual()
        output = start(reducer, net, group, 0)
        with pytest.raises(RuntimeError, match="got 0 full buckets, expected [1-9]"):
            reducer._finalize_backward_manual()
        with pytest.raises(RuntimeError, match="_set_manual_finalization_required.*got a call during a pass"):
            reducer._set_manual_finalization_required(False)
        output.sum().backward()
        with pytest.raises(RuntimeError, match="Expected to have finished reduction in the prior iteration"):
            reducer.prepare_for_backward()
        reducer._finalize_backward_manual()
        with pytest.raises(RuntimeError, match="no pass to end"):
            reducer._finalize_backward_manual()
        with reducer.no_sync():
            start(reducer, net, group, 1).sum().backward()
            with pytest.raises(RuntimeError, match=r"no_sync\(\) is active"):
                reducer._finalize_backward_manual()

"""The module-level calls of torch.distributed, over dldist. See dldist.distributed_c10d."""

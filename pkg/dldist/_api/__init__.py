"""torch.distributed's module-level calls over dldist: see dldist.distributed_c10d."""

"""torch.distributed's surface over dldist: see dldist.distributed_c10d."""

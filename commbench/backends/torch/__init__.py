"""torch.distributed: gloo and NCCL."""

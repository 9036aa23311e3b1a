"""Training: configs and recipes, batches sampled on the device, the loss, the loop, checkpoints and resumable runs."""

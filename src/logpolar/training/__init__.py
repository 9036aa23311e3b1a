"""Training: batches sampled in line on the device, the loss, the loop."""

"""What runs a model's network: onnxruntime, OpenVINO and torch; each is a ``Describer``."""

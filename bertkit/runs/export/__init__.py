"""Models for other tools: an ONNX graph, also in 8 bits, compared with the model, and a script that predicts with it."""

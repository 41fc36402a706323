"""Models for other tools: an ONNX graph, also in int8, compared with the model, and a script that predicts with it."""

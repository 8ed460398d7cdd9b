"""Device code (*.cu, *.cuh, *_triton.py) and the one module that compiles and launches the CUDA half of it (build.py)."""

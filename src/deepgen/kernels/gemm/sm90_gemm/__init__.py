"""GEMM on Hopper's tensor cores: the bulk copy engine feeds warpgroup matrix instructions."""

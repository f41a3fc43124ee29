// A convolution of copies: what the copy engine cannot take is laid out anew first, and the result afterwards.
#include "gemm_sm90.cu"
#include "copies.h"

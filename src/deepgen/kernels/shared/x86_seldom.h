// From here on what runs once for a call, a task or a block. It is as quick after few of the compiler's passes, and takes
// half of the compiler's time.
#if !defined(__clang__)
#pragma GCC optimize("O1")
#endif

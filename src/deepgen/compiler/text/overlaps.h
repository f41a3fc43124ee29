// Launches that overlap: one lets the next begin at once, and that waits before it reads what the first one writes.
#pragma once
#include "expressions.h"

#if defined(DG_EMULATE)
DG_DEVICE void next_may_begin() {}
DG_DEVICE void wait_for_launch_before() {}
#else
DG_DEVICE void next_may_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
DG_DEVICE void wait_for_launch_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#endif

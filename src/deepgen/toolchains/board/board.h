// What the runner and the calls of a launch plan share.
#pragma once
#include <stdint.h>

typedef union {
    int64_t i;
    double d;
} board_number;

// Names in the order in which the calls use them; an empty one ends a list.
extern const char *const board_tensors[], *const board_workspaces[];
extern const char board_numbers[];  // the kind of each number: i or d

void board_prepare(void **tensors, void **workspaces, const board_number *numbers);
void board_run(void **tensors, void **workspaces, const board_number *numbers);

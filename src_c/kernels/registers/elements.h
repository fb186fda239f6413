/* elements.h: the dtype that a file of kernels is compiled for. f32.c and its like include theirs
 * before all else; an editor that opens a file alone sees float32. */
#pragma once

#ifndef STORAGE
#include "kernels/registers/f32.h"
#endif

/* names.h: names made of words. */
#pragma once

#define BN_PASTE(a, b)    a##_##b
#define BN_JOIN(a, b)     BN_PASTE(a, b)
#define BN_OF_LEVEL(name) BN_JOIN(name, BN_LEVEL)

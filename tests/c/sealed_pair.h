/* Both ends of a sealed stream, for tests. */
#ifndef TESTS_SEALED_PAIR_H
#define TESTS_SEALED_PAIR_H

#include "net/seal.h"

/* With keys that are the same in every run. False, and a check has failed: there is no library of ciphers. */
bool sealed_pair_make(dd_cipher cipher, dd_seal_use use, dd_seal *seals[2]);

#endif

/* Both ends of a sealed stream, for tests. */
#ifndef TESTS_SEALED_PAIR_H
#define TESTS_SEALED_PAIR_H

#include "net/seal.h"

/* Create the pair, with the same keys in every run. Return false after a failed check if there is
 * no library of ciphers. */
bool sealed_pair_make(dd_cipher cipher, dd_seal_use use, dd_seal *seals[2]);

#endif

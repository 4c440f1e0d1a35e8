// SPDX-License-Identifier: Apache-2.0
// What tests can tell the stand-in for GDRCopy's library, and ask it.
#ifndef AWAKEN_TESTS_FAKE_GDRAPI_H
#define AWAKEN_TESTS_FAKE_GDRAPI_H

struct fake_gdrapi {
    // Set by tests.
    int open_fails;             // as without the kernel module
    int pin_fails;              // times that pinning still fails, as when the card has no room for more
    int map_fails;              // the same for mapping
    int copy_fails;             // the same for copies
    int loses_writes;           // copies to device memory change nothing
    int spoils_reads;           // copies from device memory get one byte wrong
    void (*during_copy)(void);  // called by the next copy, while its mapping is in use; then null again
    // Kept by the library.
    int opened, closed;  // calls that succeeded
    int pins;            // times that memory was pinned
    int pinned, mapped;  // now
    int misuses;         // calls that the real library would not have survived or that it refuses
};

#endif

// The program of the store's tests has one function that takes the place of the C library's open
// (store_threads_test.cc).
#pragma once

#include "base_opened_beneath.h"

namespace everlong::store {

// Asked before a file is opened, once it is set: where it says yes open fails with the errno that it left.
inline bool (*g_refuses_open)(const OpenedBeneath& opened) = nullptr;

}  // namespace everlong::store

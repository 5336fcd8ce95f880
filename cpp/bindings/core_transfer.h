// A staging buffer as Python holds it.
#pragma once

#include "core_held.h"
#include "everlong/kv/transfer_engine.h"

namespace everlong::bindings {

using BufferHandle = Held<kv::StagingBuffer>;

}  // namespace everlong::bindings

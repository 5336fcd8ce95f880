// A memory as Python holds it, with its objects: memory.blocks, memory.search, memory.index ...
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core_errors.h"
#include "core_held.h"
#include "everlong/os/memory.h"

namespace everlong::bindings {

class MemoryHandle;

// One of a memory's objects as Python holds it. Python keeps its MemoryHandle alive, of which it is a part.
template <class Object>
class ObjectHandle {
 public:
  using Of = Object& (os::Memory::*)();
  ObjectHandle(const MemoryHandle& memory, Of of) : memory_(memory), of_(of) {}

  // Run work(object) without the GIL. ClosedError as of MemoryHandle::Call.
  template <class Work>
  auto Call(const Work& work) const;
  [[nodiscard]] const MemoryHandle& memory() const { return memory_; }

 private:
  const MemoryHandle& memory_;
  const Of of_;
};

// The Python object: a memory until it is closed. A call that runs in another thread during close() finishes on the
// memory it began with. The last such call releases lock and files.
class MemoryHandle : public Held<os::Memory> {
 public:
  explicit MemoryHandle(std::unique_ptr<os::Memory> memory) : Held(std::move(memory), "the memory") {}

  const ObjectHandle<os::Blocks> blocks{*this, &os::Memory::blocks};
  const ObjectHandle<os::Searcher> search{*this, &os::Memory::search};
  const ObjectHandle<os::Indexes> index{*this, &os::Memory::index};
  const ObjectHandle<os::BlockGraph> graph{*this, &os::Memory::graph};
  const ObjectHandle<os::Upkeep> upkeep{*this, &os::Memory::upkeep};
};

template <class Object>
template <class Work>
auto ObjectHandle<Object>::Call(const Work& work) const {
  return memory_.Call([&](os::Memory& memory) { return work((memory.*of_)()); });
}

// What a method gets for an argument from Python.
template <class T>
struct FromPython {
  using Type = std::decay_t<T>;
};
template <class T>
struct FromPython<std::span<const T>> {
  using Type = std::vector<T>;
};

// Return a method of an object for Python. It runs without the GIL, and raises its error.
template <class Object, class Return, class... Arguments>
auto Method(Return (Object::*method)(Arguments...)) {
  return [method](const ObjectHandle<Object>& self, typename FromPython<Arguments>::Type... arguments) {
    return OrRaise(self.Call([&](Object& object) { return (object.*method)(arguments...); }));
  };
}
template <class Object, class Return, class... Arguments>
auto Method(Return (Object::*method)(Arguments...) const) {
  return [method](const ObjectHandle<Object>& self, typename FromPython<Arguments>::Type... arguments) {
    return OrRaise(self.Call([&](const Object& object) { return (object.*method)(arguments...); }));
  };
}

}  // namespace everlong::bindings

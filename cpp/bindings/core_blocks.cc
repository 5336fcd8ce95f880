// memory.blocks: archive blocks, read them, forget them (everlong/os/blocks.h).
#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core_arrays.h"
#include "core_bindings.h"
#include "core_memory.h"
#include "core_names.h"
#include "core_tensors.h"
#include "core_transfer.h"
#include "everlong/graph/own_tags.h"

namespace everlong::bindings {
namespace {

namespace py = pybind11;
using store::BlockInfo;
using BlocksHandle = ObjectHandle<os::Blocks>;
using Shape = py::typing::Tuple<py::int_, py::ellipsis>;

// Reads under way. They keep the memory alive, and Python keeps the buffers that they fill.
struct ReadsOfMemory {
  std::shared_ptr<os::Memory> memory;
  std::unique_ptr<store::PendingReads> reads;  // destroyed first: its destructor waits
};
using PendingReadsHandle = Held<ReadsOfMemory>;

// The bytes of a block. Append asks which of the two it is.
using Payload = py::typing::Union<ArrayOf<uint8_t>, BufferHandle>;

int64_t Append(const BlocksHandle& self, int64_t stream, int64_t begin, int64_t end, int32_t sink_tokens,
               std::string source, double created_at, std::vector<std::string> tags, const ArrayOf<int32_t>& token_ids,
               const Payload& payload, const ArraysByName& tensors, const std::string& role) {
  store::BlockDraft draft;
  draft.stream = stream;
  draft.span = {begin, end};
  draft.sink_tokens = sink_tokens;
  draft.source = std::move(source);
  draft.created_at = created_at;
  draft.tags = std::move(tags);
  draft.role = ParseRole(role);
  draft.token_ids = View<int32_t>(token_ids, "token_ids");
  if (py::isinstance<BufferHandle>(payload)) {
    const std::shared_ptr<kv::StagingBuffer> staged = payload.cast<const BufferHandle&>().Share();
    draft.payload = staged->bytes();
    draft.payload_owner = staged;
  } else {
    draft.payload = std::as_bytes(View<uint8_t>(payload, "payload"));
  }
  const std::vector<store::TensorView> views = TensorsOf(tensors);
  draft.tensors = views;
  return ValueOrRaise(self.Call([&](os::Blocks& blocks) { return blocks.Append(draft); }));
}

std::map<std::string, py::array> AllTensors(const BlocksHandle& self, int64_t block) {
  const std::vector<store::Tensor> tensors =
      ValueOrRaise(self.Call([&](os::Blocks& blocks) -> Result<std::vector<store::Tensor>> {
        EVERLONG_ASSIGN_OR_RETURN(const std::vector<store::TensorInfo> infos, blocks.Tensors(block));
        std::vector<store::Tensor> read;
        for (const store::TensorInfo& info : infos) {
          EVERLONG_ASSIGN_OR_RETURN(store::Tensor tensor, blocks.ReadTensor(block, info.name));
          read.push_back(std::move(tensor));
        }
        return read;
      }));
  std::map<std::string, py::array> arrays;
  for (const store::Tensor& tensor : tensors) arrays.emplace(tensor.name, ToArray(tensor));
  return arrays;
}

py::array TensorOf(const BlocksHandle& self, int64_t block, const std::string& name) {
  return ToArray(ValueOrRaise(self.Call([&](os::Blocks& blocks) { return blocks.ReadTensor(block, name); })));
}

std::map<std::string, std::pair<std::string, Shape>> TensorShapes(const BlocksHandle& self, int64_t block) {
  const std::vector<store::TensorInfo> infos =
      ValueOrRaise(self.Call([&](os::Blocks& blocks) { return blocks.Tensors(block); }));
  std::map<std::string, std::pair<std::string, Shape>> shapes;
  for (const store::TensorInfo& info : infos) shapes.emplace(info.name, std::pair(info.dtype, py::cast(info.shape)));
  return shapes;
}

void PutTensors(const BlocksHandle& self, int64_t block, const ArraysByName& tensors) {
  const std::vector<store::TensorView> views = TensorsOf(tensors);
  RaiseIfError(self.Call([&](os::Blocks& blocks) { return blocks.PutTensors(block, views); }));
}

std::optional<kv::Codec> CodecOf(const std::optional<std::string>& name) {
  if (!name) return std::nullopt;
  return ValueOrRaise(kv::ParseCodec(*name));
}

void ReadPages(const BlocksHandle& self, const std::vector<PageRef>& pages, const ArrayOf<uint8_t>& out,
               const std::optional<std::string>& codec) {
  const std::optional<kv::Codec> as = CodecOf(codec);
  const std::span<uint8_t> bytes = WritableView<uint8_t>(out, "out");
  RaiseIfError(
      self.Call([&](os::Blocks& blocks) { return blocks.ReadPages(pages, std::as_writable_bytes(bytes), as); }));
}

std::unique_ptr<PendingReadsHandle> StartReadPages(const BlocksHandle& self, const std::vector<PageRef>& pages,
                                                   int32_t first_layer, int32_t layers, const ArrayOf<uint8_t>& out,
                                                   const std::optional<std::string>& codec) {
  const std::optional<kv::Codec> as = CodecOf(codec);
  const std::span<uint8_t> bytes = WritableView<uint8_t>(out, "out");
  // Take the memory before the reads begin: close() in another thread may come before they are returned.
  std::shared_ptr<os::Memory> memory = self.memory().Share();
  auto reads = Unlocked([&] {
    auto started = memory->blocks().StartReadPages(pages, first_layer, layers, std::as_writable_bytes(bytes), as);
    if (!started.ok()) memory.reset();
    return started;
  });
  auto under_way = std::make_shared<ReadsOfMemory>(std::move(memory), ValueOrRaise(std::move(reads)));
  return std::make_unique<PendingReadsHandle>(std::move(under_way), "the reads");
}

// A copy of the page: another thread may change the object meanwhile.
py::array_t<float> ReadKeys(const BlocksHandle& self, PageRef page, int32_t layer) {
  const kv::PayloadLayout layout = self.memory().Call([](os::Memory& memory) { return memory.layout(); });
  if (page.span.empty() || page.span.size() > layout.page_tokens) throw py::value_error("page: not a page's span");
  const py::ssize_t tokens = page.span.size();
  py::array_t<float> keys({py::ssize_t{layout.kv_heads}, tokens, py::ssize_t{layout.head_dim}});
  const std::span<float> out(keys.mutable_data(), static_cast<size_t>(keys.size()));
  RaiseIfError(self.Call([&](os::Blocks& blocks) { return blocks.ReadKeys(page, layer, out); }));
  return keys;
}

std::vector<BlockInfo> Infos(const BlocksHandle& self, std::vector<std::string> sources, std::vector<std::string> tags,
                             std::optional<double> since, std::optional<double> before,
                             const std::vector<std::string>& roles, std::optional<double> happened_since,
                             std::optional<double> happened_before, std::vector<std::string> newest_tags,
                             const std::optional<std::string>& source, const std::optional<std::string>& tag,
                             int64_t behind, std::optional<int64_t> limit, std::optional<std::vector<int64_t>> among) {
  if (source) sources.push_back(*source);
  if (tag) tags.push_back(*tag);
  const index::SearchFilter filter{std::move(sources), std::move(tags), since,           before,
                                   ParseRoles(roles),  happened_since,  happened_before, std::move(newest_tags)};
  os::BlockSlice slice{behind};
  if (limit) slice.most = *limit;
  slice.among = std::move(among);
  return OrRaise(self.Call([&](os::Blocks& blocks) { return blocks.Infos(filter, slice); }));
}

void BindPage(py::module_& module) {
  py::class_<PageRef>(module, "PageRef")
      .def(py::init([](int64_t block, int32_t page, int64_t stream, int64_t begin, int64_t end, int32_t sink_tokens) {
             return PageRef{block, page, stream, {begin, end}, sink_tokens};
           }),
           py::arg("block"), py::arg("page"), py::arg("stream"), py::arg("begin"), py::arg("end"),
           py::arg("sink_tokens") = 0)
      .def_readwrite("block", &PageRef::block)
      .def_readwrite("page", &PageRef::page)
      .def_readwrite("stream", &PageRef::stream)
      .def_property(
          "begin", [](const PageRef& self) { return self.span.begin; },
          [](PageRef& self, int64_t value) { self.span.begin = value; })
      .def_property(
          "end", [](const PageRef& self) { return self.span.end; },
          [](PageRef& self, int64_t value) { self.span.end = value; })
      .def_readwrite("sink_tokens", &PageRef::sink_tokens,
                     "How many of its first tokens are sinks of that stream; no recall brings them back.")
      .def(
          "__eq__",
          [](const PageRef& self, const py::object& other) {
            return py::isinstance<PageRef>(other) && self == other.cast<const PageRef&>();
          },
          py::arg("other"))
      .def("__repr__", [](const PageRef& self) {
        return "PageRef(block=" + std::to_string(self.block) + ", page=" + std::to_string(self.page) +
               ", stream=" + std::to_string(self.stream) + ", begin=" + std::to_string(self.span.begin) +
               ", end=" + std::to_string(self.span.end) + ", sink_tokens=" + std::to_string(self.sink_tokens) + ")";
      });
}

void BindInfo(py::module_& module) {
  py::class_<BlockInfo>(module, "BlockInfo")
      .def_property_readonly("begin", [](const BlockInfo& self) { return self.span.begin; })
      .def_property_readonly("end", [](const BlockInfo& self) { return self.span.end; })
      .def_readonly("id", &BlockInfo::id)
      .def_readonly("stream", &BlockInfo::stream)
      .def_readonly("sink_tokens", &BlockInfo::sink_tokens)
      .def_property_readonly("source", [](const BlockInfo& self) { return TextOf(self.source); })
      .def_readonly("created_at", &BlockInfo::created_at)
      .def_property_readonly(
          "happened", [](const BlockInfo& self) { return graph::ToldBy(self.tags).happened; },
          "When its events happened, in seconds since 1970, as its tags say; None where nobody said.")
      .def_property_readonly("tags",
                             [](const BlockInfo& self) {
                               py::typing::List<py::str> tags;
                               for (const std::string& tag : self.tags) tags.append(TextOf(tag));
                               return tags;
                             })
      .def_readonly("pages", &BlockInfo::pages)
      .def_readonly("payload_bytes", &BlockInfo::payload_bytes)
      .def_property_readonly(
          "role", [](const BlockInfo& self) { return NameOf(self.role); }, R"(One of "read", "asked" and "said".)");
}

// Bind what writes blocks.
void BindChanges(py::class_<BlocksHandle>& blocks) {
  blocks
      .def("append", &Append, py::kw_only(), py::arg("stream"), py::arg("begin"), py::arg("end"),
           py::arg("sink_tokens"), py::arg("source"), py::arg("created_at"), py::arg("tags"), py::arg("token_ids"),
           py::arg("payload"), py::arg("tensors") = ArraysByName{}, py::arg("role") = "read",
           R"(Append a block and return its id. It is durable after the next flush.

- payload: the block's bytes as `archive_kv` laid them out (the manifest gives the page sizes). An array is copied. A
  staging buffer is not, and must not be touched again.
- tensors: small ones by name (at most 256 and 64 MiB a block), stored in the block's own commit. numpy has no bfloat16:
  uint16 stands for its bits.)")
      .def(
          "add_tags", Method(&os::Blocks::AddTags), py::arg("block"), py::arg("tags"),
          R"(Add tags to an archived block, behind those it has. They are durable on return, and searched by from then on.

A tag that it has is not added. MemoryNotFoundError for a block that is not here (any more).)")
      .def("drop_tensors", Method(&os::Blocks::DropTensors), py::arg("block"), py::arg("names"),
           "Drop tensors of a block. No search finds it by what was made of them, until they come again.")
      .def("set_tags", Method(&os::Blocks::SetTags), py::arg("block"), py::arg("tags"),
           "Give an archived block these tags in place of all that it has. MemoryNotFoundError as for add_tags.")
      .def("put_tensors", &PutTensors, py::arg("block"), py::arg("tensors"),
           R"(Put tensors to an archived block, each in place of the one of its name. They are durable on return.

What the index takes of them is found from then on. MemoryNotFoundError for a block that is not here (any more).
ValueError where one does not fit, and then none is stored.)")
      .def(
          "forget",
          [](const BlocksHandle& self, const std::vector<int64_t>& blocks) {
            int64_t freed = 0;
            RaiseIfError(self.Call([&](os::Blocks& of) { return of.Forget(blocks, &freed); }));
            return freed;
          },
          py::arg("blocks"), "Forget blocks. Return the bytes that were given back at once: 0 but on a full disk.");
}

// Bind what reads them.
void BindReads(py::class_<BlocksHandle>& blocks) {
  constexpr size_t kReads = 0;  // the result of start_read_pages
  constexpr size_t kOut = 5;    // its argument `out`
  blocks
      .def("tensors", &AllTensors, py::arg("block"),
           "Return what was appended with the block, or put to it since; bits of bfloat16 as uint16, of FP8 as uint8.")
      .def("tensor", &TensorOf, py::arg("block"), py::arg("name"),
           "Return one of those alone. MemoryNotFoundError where there is none.")
      .def("tensor_shapes", &TensorShapes, py::arg("block"),
           "Return their dtypes, as safetensors names them, and shapes. None of their bytes are read.")
      .def("infos", &Infos, py::kw_only(), py::arg("sources") = std::vector<std::string>{},
           py::arg("tags") = std::vector<std::string>{}, py::arg("since") = py::none(), py::arg("before") = py::none(),
           py::arg("roles") = std::vector<std::string>{}, py::arg("happened_since") = py::none(),
           py::arg("happened_before") = py::none(), py::arg("newest_tags") = std::vector<std::string>{},
           py::arg("source") = py::none(), py::arg("tag") = py::none(), py::arg("behind") = 0,
           py::arg("limit") = py::none(), py::arg("among") = py::none(),
           R"(Return blocks by the filters of a search, by id. Without roles it returns every role.

`source` is one more of the sources, `tag` of the tags. At most `limit`, with ids above `behind`: the next page of the
list begins behind the last id of this one, and costs what it returns. `among`: of these ids alone, each looked up.)")
      .def("info", Method(&os::Blocks::Info), py::arg("id"))
      .def("pages", Method(&os::Blocks::Pages))
      .def(
          "pages_of",
          [](const BlocksHandle& self, int64_t stream, int64_t begin, int64_t end) {
            return OrRaise(self.Call([&](os::Blocks& of) { return of.PagesOf(stream, {begin, end}); }));
          },
          py::arg("stream"), py::arg("begin"), py::arg("end"))
      .def("codec", Method(&os::Blocks::Codec), py::arg("block"), "Return how the block's payload is coded.")
      .def(
          "read_codec",
          [](const BlocksHandle& self, int64_t block) {
            const auto layout = self.Call([&](os::Blocks& of) { return of.Layout(block); });
            return std::string(kv::CodecName(ValueOrRaise(layout).codec));
          },
          py::arg("block"), "Return the codec in which reads give its payload: of a transformed block fp32.")
      .def("read_pages", &ReadPages, py::arg("pages"), py::arg("out"), py::arg("codec") = py::none(),
           "Read pages of blocks whose `read_codec` is `codec`; by default the memory's. MemoryBusyError where it is "
           "not.")
      .def("start_read_pages", &StartReadPages, py::keep_alive<kReads, kOut>(), py::arg("pages"),
           py::arg("first_layer"), py::arg("layers"), py::arg("out"), py::arg("codec") = py::none(),
           "Read those layers of each page, one after the other. `out` may be used once `wait` has returned.")
      .def("read_keys", &ReadKeys, py::arg("page"), py::arg("layer"), "Return [Hkv, tokens, D], un-rotated.")
      .def(
          "token_ids",
          [](const BlocksHandle& self, int64_t stream, int64_t begin, int64_t end) {
            return ToArray(OrRaise(self.Call([&](os::Blocks& of) { return of.TokenIds(stream, {begin, end}); })));
          },
          py::arg("stream"), py::arg("begin"), py::arg("end"))
      .def("stream_end", Method(&os::Blocks::StreamEnd), py::arg("stream"));
}

}  // namespace

void BindBlocks(py::module_& module) {
  BindPage(module);
  BindInfo(module);
  py::class_<PendingReadsHandle>(module, "PendingReads",
                                 "Reads under way. Dropping them gives up what is not read yet. Thread-safe.")
      .def(
          "wait",
          [](const PendingReadsHandle& self) {
            RaiseIfError(self.Call([](const ReadsOfMemory& of) { return of.reads->Wait(); }));
          },
          "Wait until every byte is there. Raise the first failure.");
  py::class_<BlocksHandle> blocks(module, "Blocks", R"(The blocks of a memory: cpp/os/include/everlong/os/blocks.h.

Thread-safe: reads run beside each other and beside searches. Changes take turns with every other change of the memory,
and keep reads out only while they put the outcome in place.)");
  BindChanges(blocks);
  BindReads(blocks);
}

}  // namespace everlong::bindings

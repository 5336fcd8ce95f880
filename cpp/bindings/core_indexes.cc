// memory.index: the parts of a memory's index that the caller chooses (everlong/os/index.h).
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core_arrays.h"
#include "core_bindings.h"
#include "core_index.h"
#include "core_memory.h"
#include "core_names.h"

#ifdef EVERLONG_GPU
#include "core_gpu_index.h"
#endif

namespace everlong::bindings {
namespace {

namespace py = pybind11;
using HeadTuple = std::tuple<int32_t, int32_t, int32_t>;
using IndexesHandle = ObjectHandle<os::Indexes>;

Result<std::shared_ptr<index::IndexDevice>> MakeIndexDevice([[maybe_unused]] int32_t device) {
#ifdef EVERLONG_GPU
  EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<index::IndexDevice> made, MakeGpuIndexDevice(device));
  return std::shared_ptr<index::IndexDevice>(std::move(made));
#else
  return NoGpuError(device);
#endif
}

void SetRetrievalHeads(const IndexesHandle& self, const std::vector<HeadTuple>& heads, int32_t coarse_from,
                       const std::string& keys, std::optional<int32_t> device, int64_t device_bytes) {
  index::HeadsOptions options{coarse_from, ByName("keys", keys, index::kKeyStorages)};
  if (device.has_value()) {
    options.device = ValueOrRaise(MakeIndexDevice(*device));
    options.device_bytes = device_bytes;
  }
  std::vector<index::RetrievalHead> retrieval_heads;
  retrieval_heads.reserve(heads.size());
  for (const auto& [layer, query_head, kv_head] : heads) retrieval_heads.push_back({layer, query_head, kv_head});
  RaiseIfError(
      self.Call([&](os::Indexes& indexes) { return indexes.SetRetrievalHeads(std::move(retrieval_heads), options); }));
}

std::vector<HeadTuple> RetrievalHeads(const IndexesHandle& self) {
  std::vector<HeadTuple> heads;
  for (const index::RetrievalHead& head : self.Call([](os::Indexes& indexes) { return indexes.retrieval_heads(); })) {
    heads.emplace_back(head.layer, head.query_head, head.kv_head);
  }
  return heads;
}

void SetPageVectors(const IndexesHandle& self, std::string encoder, int32_t dimension, const std::string& search) {
  constexpr auto& kNames = index::kVectorSearchNames;
  const size_t number = PlaceOf("search", search, {std::begin(kNames), std::end(kNames)});
  const os::PageVectorOptions options{std::move(encoder), dimension, static_cast<index::VectorSearch>(number)};
  RaiseIfError(self.Call([&](os::Indexes& indexes) { return indexes.SetPageVectors(options); }));
}

void AddPageVectors(const IndexesHandle& self, int64_t block, const ArrayOf<int32_t>& pages,
                    const ArrayOf<float>& vectors, const std::vector<std::vector<int32_t>>& terms) {
  const auto page_view = View<int32_t>(pages, "pages", 1);
  const auto vector_view = View<float>(vectors, "vectors", 2);
  RaiseIfError(
      self.Call([&](os::Indexes& indexes) { return indexes.AddPageVectors(block, page_view, vector_view, terms); }));
}

// None, or a pack without a name, sets none.
void SetMeaning(const IndexesHandle& self, std::optional<std::string> pack, int32_t dimension, int32_t group_tokens,
                std::optional<int32_t> device, int64_t device_bytes, const std::string& part,
                int32_t sentence_dimension, int32_t sentence_tokens) {
  const index::IndexPart kind = ParsePart("part", part);
  std::optional<os::MeaningOptions> options;
  if (pack && !pack->empty()) {
    options = {*std::move(pack), dimension, group_tokens};
    options->sentence_dimension = sentence_dimension;
    options->sentence_tokens = sentence_tokens;
    if (device.has_value()) {
      options->device = ValueOrRaise(MakeIndexDevice(*device));
      options->device_bytes = device_bytes;
    }
  }
  RaiseIfError(self.Call([&](os::Indexes& indexes) { return indexes.SetMeaning(options, kind); }));
}

// A table of words, which the memories of one tokenizer share.
struct WordTableHandle {
  std::shared_ptr<const index::WordTable> table;
};

WordTableHandle MakeWordTable(const std::vector<py::bytes>& texts, const std::vector<bool>& begins_within,
                              const std::vector<bool>& ends_within) {
  if (texts.size() != begins_within.size() || texts.size() != ends_within.size()) {
    throw py::value_error("texts, begins_within and ends_within have " + std::to_string(texts.size()) + ", " +
                          std::to_string(begins_within.size()) + " and " + std::to_string(ends_within.size()) +
                          " values, expected one of each for a token");
  }
  std::vector<index::TokenPiece> pieces;
  pieces.reserve(texts.size());
  for (size_t id = 0; id < texts.size(); ++id) pieces.push_back({texts[id], begins_within[id], ends_within[id]});
  return {ValueOrRaise(index::WordTable::Make(pieces))};
}

std::vector<std::tuple<int32_t, size_t, size_t>> Words(const WordTableHandle& self, const ArrayOf<int32_t>& token_ids) {
  std::vector<std::tuple<int32_t, size_t, size_t>> words;
  for (const index::WordTable::Word& word : self.table->Words(View<int32_t>(token_ids, "token_ids", 1))) {
    words.emplace_back(word.term, word.first, word.last);
  }
  return words;
}

void SetWords(const IndexesHandle& self, const std::optional<WordTableHandle>& words) {
  RaiseIfError(self.Call([&](os::Indexes& indexes) { return indexes.SetWords(words ? words->table : nullptr); }));
}

std::optional<WordTableHandle> WordsOf(const IndexesHandle& self) {
  std::shared_ptr<const index::WordTable> words = self.Call([](os::Indexes& indexes) { return indexes.words(); });
  return words == nullptr ? std::nullopt : std::optional(WordTableHandle{std::move(words)});
}

std::pair<int64_t, int64_t> DeviceUse(const IndexesHandle& self, const std::string& part) {
  const index::IndexPart kind = ParsePart("part", part);
  const index::DeviceUse use = self.Call([&](os::Indexes& indexes) { return indexes.device_use(kind); });
  return {use.bytes, use.scans};
}

std::optional<std::unique_ptr<ListsHandle>> PageLists(const IndexesHandle& self) {
  auto lists = self.Call([](os::Indexes& indexes) { return indexes.page_lists(); });
  return lists == nullptr ? std::nullopt : std::optional(std::make_unique<ListsHandle>(std::move(lists)));
}

void SetPageRouter(const IndexesHandle& self, const ArrayOf<int64_t>& lists, const ArrayOf<float>& vectors,
                   const ArrayOf<float>& biases) {
  const auto router = RouterOf(lists, vectors, biases);
  RaiseIfError(self.Call([&](os::Indexes& indexes) { return indexes.SetPageRouter(router); }));
}

}  // namespace

void BindIndexes(py::module_& module) {
  py::class_<WordTableHandle>(module, "WordTable",
                              R"(Which words token ids spell: cpp/index/include/everlong/index/word_table.h.

Immutable.)")
      .def(py::init(&MakeWordTable), py::arg("texts"), py::arg("begins_within"), py::arg("ends_within"),
           R"(Of each token id what it says, empty for nothing; whether it goes on with a word that began before it; and
whether the token behind it may go on with its last word.)")
      .def("words", &Words, py::arg("token_ids"),
           "Return each word of token ids as a number, its first token, and one past its last.");
  py::class_<IndexesHandle>(module, "Indexes", R"(The index of a memory: cpp/os/include/everlong/os/index.h.

Thread-safe: changes take turns with every other change of the memory, and keep searches out only while they put the
outcome in place.)")
      .def("set_retrieval_heads", &SetRetrievalHeads, py::arg("heads"), py::arg("coarse_from") = index::kCoarseFrom,
           py::arg("keys") = "bf16", py::arg("device") = py::none(), py::arg("device_bytes") = 0,
           R"(Set heads as (layer, query_head, kv_head), layers counted among the archived ones.

From `coarse_from` pages on a search goes by two levels (cpp/index/include/everlong/index/heads.h). keys: how their keys
are kept, "bf16", "int8" or "e4m3" (cpp/index/include/everlong/index/key_layout.h). With a `device`, searches scan on
that GPU, in at most `device_bytes` of its memory, and on the host where the keys do not fit.)")
      .def("retrieval_heads", &RetrievalHeads)
      .def("set_words", &SetWords, py::arg("words"),
           "Search by these words from now on, in the part \"words\"; None: by none, as at first.")
      .def("words", &WordsOf)
      .def(
          "device_use", &DeviceUse, py::arg("part"),
          R"(Return bytes of the GPU that the part takes now, and searches it scanned there; for "heads", "meaning" and "encoder".)")
      .def("set_page_vectors", &SetPageVectors, py::arg("encoder"), py::arg("dimension"), py::arg("search") = "flat",
           "Search by vectors of that encoder from now on. Those of another encoder are dropped.")
      .def("page_lists", &PageLists)
      .def("set_page_router", &SetPageRouter, py::arg("lists"), py::arg("vectors"), py::arg("biases"))
      .def("add_page_vectors", &AddPageVectors, py::arg("block"), py::arg("pages"), py::arg("vectors"),
           py::arg("terms") = std::vector<std::vector<int32_t>>(),
           R"(Add vectors [n, dimension] of pages [n] of the block, ascending, at most 16 each.

Token ids of each [n] name them where they are searched by lists.)")
      .def("pages_without_vectors", Method(&os::Indexes::PagesWithoutVectors),
           "Return the pages of every block that has no vectors yet, in order of archiving.")
      .def(
          "set_meaning", &SetMeaning, py::arg("pack"), py::arg("dimension") = 0, py::arg("group_tokens") = 0,
          py::arg("device") = py::none(), py::arg("device_bytes") = 0, py::arg("part") = "meaning",
          py::arg("sentence_dimension") = 0, py::arg("sentence_tokens") = 0,
          R"(Search by the vectors of that pack from now on (cpp/index/include/everlong/index/meaning.h); None or "": by none.

`part` is "meaning", "encoder" or another kind that is from_pack. The vectors are the tensor "PART.PACK" of each block,
int8 [vectors, dimension]. There is one vector for every `group_tokens` tokens of a page and one for what is left of it,
pages in order. ValueError for options out of range.
With a sentence_dimension, "sentence.PACK" has vectors of sentences in the same way, by `sentence_tokens`, and
"passage.PACK" one for each page.
`device` and `device_bytes` are as in set_retrieval_heads; scores are the same.)")
      .def(
          "blocks_without_meaning",
          [](const IndexesHandle& self, const std::string& part) {
            const index::IndexPart kind = ParsePart("part", part);
            return self.Call([kind](os::Indexes& of) { return of.BlocksWithout(kind); });
          },
          py::arg("part") = "meaning",
          "Return ids of blocks without vectors of the pack, in order of archiving; none without set_meaning.")
      .def("save", Method(&os::Indexes::Save),
           "Keep in index/ what took a reading of the payload. What is saved already is not written again.")
      .def("take_messages", Method(&os::Indexes::TakeMessages),
           "Return what was wrong with saved indexes, and why the host searched instead of the GPU; each once.");
}

}  // namespace everlong::bindings

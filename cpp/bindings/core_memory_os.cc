#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "core_bindings.h"
#include "core_errors.h"
#include "everlong/base/check.h"
#include "everlong/base/page_ref.h"
#include "everlong/os/memory_os.h"

namespace everlong::bindings {
namespace {

namespace py = pybind11;
using os::ArchiveAction;
using os::EvictAction;
using os::MemoryOs;
using os::MemoryOsConfig;
using os::Origin;
using os::Placement;
using os::RecallAction;
using os::TrimAction;

const char* StateName(os::State state) {
  switch (state) {
    case os::State::kGenerating:
      return "generating";
    case os::State::kArchiving:
      return "archiving";
    case os::State::kRetrieving:
      return "retrieving";
  }
  EVERLONG_CHECK(false);
}

Origin ParseOrigin(const std::string& name) {
  if (name == "read") return Origin::kRead;
  if (name == "prompt") return Origin::kPrompt;
  if (name == "generated") return Origin::kGenerated;
  throw py::value_error("origin: \"" + name + "\", expected \"read\", \"prompt\" or \"generated\"");
}

os::BoundaryKind ParseBoundary(const std::string& name) {
  if (name == "sentence") return os::BoundaryKind::kSentence;
  if (name == "paragraph") return os::BoundaryKind::kParagraph;
  if (name == "turn") return os::BoundaryKind::kTurn;
  if (name == "signal") return os::BoundaryKind::kSignal;
  throw py::value_error("boundary: \"" + name + "\", expected \"sentence\", \"paragraph\", \"turn\" or \"signal\"");
}

os::Signal ParseSignal(const std::string& name) {
  if (name == "summarize") return os::Signal::kSummarize;
  if (name == "retrieve") return os::Signal::kRetrieve;
  throw py::value_error("signal: \"" + name + "\", expected \"summarize\" or \"retrieve\"");
}

const char* TriggerName(os::RecallTrigger trigger) {
  switch (trigger) {
    case os::RecallTrigger::kPrompt:
      return "prompt";
    case os::RecallTrigger::kRecent:
      return "recent";
    case os::RecallTrigger::kPeriodic:
      return "periodic";
    case os::RecallTrigger::kSignal:
      return "signal";
    case os::RecallTrigger::kTombstone:
      return "tombstone";
  }
  EVERLONG_CHECK(false);
}

// Bind the nested fields as one flat object, each a property.
template <class T>
void BindField(py::class_<MemoryOsConfig>& type, const char* name, T& (*field)(MemoryOsConfig&)) {
  type.def_property(
      name, [field](MemoryOsConfig& self) { return field(self); },
      [field](MemoryOsConfig& self, T value) { field(self) = value; });
}

void BindConfig(py::module_& module) {
  py::class_<MemoryOsConfig> type(module, "MemoryOsConfig");
  type.def(py::init([](const py::kwargs& fields) {
    auto config = std::make_unique<MemoryOsConfig>();
    const py::object self = py::cast(config.get(), py::return_value_policy::reference);
    const py::dict known = py::type::of(self).attr("__dict__");
    for (const auto& [name, value] : fields) {
      if (!known.contains(name)) {
        throw py::type_error("MemoryOsConfig has no field \"" + std::string(py::str(name)) + "\"");
      }
      try {
        py::setattr(self, name, value);
      } catch (py::error_already_set& error) {
        py::raise_from(
            error, PyExc_TypeError,
            ("MemoryOsConfig." + std::string(py::str(name)) + ": unfit value " + std::string(py::repr(value))).c_str());
        throw py::error_already_set();
      }
    }
    return config;
  }));
  BindField<int64_t>(type, "stream", [](MemoryOsConfig& c) -> int64_t& { return c.stream; });
  BindField<int32_t>(type, "frame_tokens", [](MemoryOsConfig& c) -> int32_t& { return c.residency.frame_tokens; });
  BindField<int32_t>(type, "sink_tokens", [](MemoryOsConfig& c) -> int32_t& { return c.residency.sink_tokens; });
  BindField<int32_t>(type, "recalled_tokens",
                     [](MemoryOsConfig& c) -> int32_t& { return c.residency.recalled_tokens; });
  BindField<int32_t>(type, "rolling_tokens", [](MemoryOsConfig& c) -> int32_t& { return c.residency.rolling_tokens; });
  BindField<int32_t>(type, "evict_tokens", [](MemoryOsConfig& c) -> int32_t& { return c.residency.evict_tokens; });
  BindField<int32_t>(type, "anchor_tokens", [](MemoryOsConfig& c) -> int32_t& { return c.residency.anchor_tokens; });
  BindField<int32_t>(type, "anchors", [](MemoryOsConfig& c) -> int32_t& { return c.residency.anchors; });
  BindField<int32_t>(type, "tombstones", [](MemoryOsConfig& c) -> int32_t& { return c.residency.tombstones; });
  BindField<int32_t>(type, "kept_tokens", [](MemoryOsConfig& c) -> int32_t& { return c.residency.kept.tokens; });
  BindField<int32_t>(type, "kept_share", [](MemoryOsConfig& c) -> int32_t& { return c.residency.kept.share; });
  BindField<int32_t>(type, "kept_rungs", [](MemoryOsConfig& c) -> int32_t& { return c.residency.kept.rungs; });
  BindField<int32_t>(type, "block_tokens", [](MemoryOsConfig& c) -> int32_t& { return c.segmenter.block_tokens; });
  BindField<int32_t>(type, "least_tokens", [](MemoryOsConfig& c) -> int32_t& { return c.segmenter.least_tokens; });
  BindField<int32_t>(type, "cooldown_tokens",
                     [](MemoryOsConfig& c) -> int32_t& { return c.segmenter.cooldown_tokens; });
  BindField<float>(type, "topic_threshold", [](MemoryOsConfig& c) -> float& { return c.segmenter.topic_threshold; });
  BindField<int32_t>(type, "topic_lookahead",
                     [](MemoryOsConfig& c) -> int32_t& { return c.segmenter.topic_lookahead; });
  BindField<bool>(type, "recall_prompt", [](MemoryOsConfig& c) -> bool& { return c.recall.prompt; });
  BindField<bool>(type, "recall_recent", [](MemoryOsConfig& c) -> bool& { return c.recall.recent; });
  BindField<bool>(type, "recall_periodic", [](MemoryOsConfig& c) -> bool& { return c.recall.periodic; });
  BindField<bool>(type, "recall_signal", [](MemoryOsConfig& c) -> bool& { return c.recall.signal; });
  BindField<bool>(type, "recall_tombstone", [](MemoryOsConfig& c) -> bool& { return c.recall.tombstone; });
  BindField<float>(type, "tombstone_threshold",
                   [](MemoryOsConfig& c) -> float& { return c.recall.tombstone_threshold; });
  BindField<int32_t>(type, "periodic_every", [](MemoryOsConfig& c) -> int32_t& { return c.recall.periodic_every; });
  BindField<int32_t>(type, "protect_tokens", [](MemoryOsConfig& c) -> int32_t& { return c.recall.protect_tokens; });
  BindField<int32_t>(type, "prompt_rolling_tokens",
                     [](MemoryOsConfig& c) -> int32_t& { return c.recall.prompt_rolling_tokens; });
  BindField<int32_t>(type, "conversation_tokens",
                     [](MemoryOsConfig& c) -> int32_t& { return c.recall.conversation_tokens; });
  BindField<int32_t>(type, "recent_every", [](MemoryOsConfig& c) -> int32_t& { return c.recall.recent_every; });
  BindField<int32_t>(type, "recent_blocks", [](MemoryOsConfig& c) -> int32_t& { return c.recall.recent_blocks; });
}

void BindActions(py::module_& module) {
  py::class_<ArchiveAction>(module, "Archive")
      .def_property_readonly("begin", [](const ArchiveAction& self) { return self.span.begin; })
      .def_property_readonly("end", [](const ArchiveAction& self) { return self.span.end; })
      .def_readonly("sink_tokens", &ArchiveAction::sink_tokens)
      .def_property_readonly("role", [](const ArchiveAction& self) { return NameOf(self.role); });
  py::class_<TrimAction>(module, "Trim")
      .def_property_readonly("begin", [](const TrimAction& self) { return self.block.begin; })
      .def_property_readonly("end", [](const TrimAction& self) { return self.block.end; })
      .def_readonly("tokens", &TrimAction::tokens)
      .def_property_readonly("runs", [](const TrimAction& self) {
        std::vector<std::pair<int64_t, int64_t>> runs;
        for (const TokenSpan& run : self.from) runs.emplace_back(run.begin, run.end);
        return runs;
      });
  py::class_<os::Keep>(module, "Keep")
      .def_readonly("tombstone", &os::Keep::tombstone)
      .def_property_readonly("begin", [](const os::Keep& self) { return self.span.begin; })
      .def_property_readonly("end", [](const os::Keep& self) { return self.span.end; })
      .def_property_readonly("dropped", [](const os::Keep& self) { return self.dropped.size(); })
      .def_readonly("merged", &os::Keep::merged)
      .def_readonly("merged_tokens", &os::Keep::merged_tokens)
      .def_readonly("next_tokens", &os::Keep::next_tokens);
  py::class_<EvictAction>(module, "Evict")
      .def_readonly("tokens", &EvictAction::tokens)
      .def_readonly("delta", &EvictAction::delta)
      .def_readonly("keeps", &EvictAction::keeps)
      .def_readonly("anchor_positions", &EvictAction::anchor_positions);
  py::class_<RecallAction>(module, "Recall")
      .def_property_readonly("trigger", [](const RecallAction& self) { return TriggerName(self.trigger); })
      .def_readonly("blocks", &RecallAction::blocks)
      .def_property_readonly("span",
                             [](const RecallAction& self) { return std::pair(self.span.begin, self.span.end); });
  py::class_<Placement>(module, "Placement")
      .def_readonly("page", &Placement::page)
      .def_readonly("first_token", &Placement::first_token)
      .def_readonly("tokens", &Placement::tokens)
      .def_readonly("position", &Placement::position)
      .def_readonly("details", &Placement::details);
}

// The core CHECKs the rules that its host must keep. Python gets an exception instead.
MemoryOs& Decided(MemoryOs& self) {
  const TrimAction* due = self.choice_due();
  if (due == nullptr) return self;
  throw py::value_error("the Trim of block " + NameOf(due->block) + " is not answered: choose() first");
}

void Choose(MemoryOs& self, const std::vector<int64_t>& tokens) {
  const TrimAction* due = self.choice_due();
  if (due == nullptr) throw py::value_error("choose: no Trim waits for an answer");
  if (static_cast<int64_t>(tokens.size()) > due->tokens) {
    throw py::value_error("tokens: " + std::to_string(tokens.size()) + " of them, expected at most " +
                          std::to_string(due->tokens));
  }
  std::set<int64_t> named;
  for (const int64_t token : tokens) {
    const bool fits =
        std::ranges::any_of(due->from, [&](const TokenSpan& run) { return token >= run.begin && token < run.end; });
    if (!fits || !named.insert(token).second) {
      throw py::value_error("tokens: " + std::to_string(token) +
                            (fits ? " is named twice" : " is in none of the action's runs"));
    }
  }
  self.Choose(tokens);
}

std::vector<os::Action> Observe(MemoryOs& self, int64_t tokens, const std::string& origin,
                                const std::vector<std::pair<int64_t, std::string>>& boundaries,
                                const py::array_t<float, py::array::c_style | py::array::forcecast>& probabilities,
                                const std::vector<float>& tombstone_scores) {
  Decided(self);
  if (tokens < 0) throw py::value_error("tokens: " + std::to_string(tokens) + ", expected at least 0");
  if (tokens > self.Room()) {
    Raise(CapacityError("tokens: " + std::to_string(tokens) + ", and the frame has room for " +
                        std::to_string(self.Room())));
  }
  std::vector<os::Boundary> places;
  int64_t before = 0;
  for (const auto& [offset, kind] : boundaries) {
    if (offset < before || offset > tokens) {
      throw py::value_error("boundaries: offset " + std::to_string(offset) + ", expected ascending ones in 0 to " +
                            std::to_string(tokens));
    }
    before = offset;
    places.push_back({self.stream_end() + offset, ParseBoundary(kind)});
  }
  if (probabilities.size() != 0 && (probabilities.ndim() != 1 || probabilities.size() != tokens)) {
    throw py::value_error("topic_probabilities: expected none, or one for each of " + std::to_string(tokens) +
                          " tokens");
  }
  const size_t stones = self.anchor_zone().tombstones.size();
  if (!tombstone_scores.empty() && tombstone_scores.size() != stones) {
    throw py::value_error("tombstone_scores: expected none, or one for each of " + std::to_string(stones) +
                          " tombstones");
  }
  return self.Observe(tokens, ParseOrigin(origin), places,
                      {probabilities.data(), static_cast<size_t>(probabilities.size())}, tombstone_scores);
}

// Return plain numbers, as JSON keeps them.
py::dict AnchorZoneDict(const os::AnchorZone& zone) {
  std::vector<std::tuple<int64_t, int64_t, int64_t>> tombstones;
  std::vector<std::pair<int64_t, int64_t>> anchors;
  for (const auto& [span, tokens] : zone.tombstones) tombstones.emplace_back(span.begin, span.end, tokens);
  for (const TokenSpan& span : zone.anchors) anchors.emplace_back(span.begin, span.end);
  py::dict out;
  out["tombstones"] = tombstones;
  out["anchors"] = anchors;
  out["topics"] = zone.topics;
  return out;
}

os::AnchorZone ParseAnchorZone(const py::dict& zone) {
  os::AnchorZone out;
  using Triples = std::vector<std::tuple<int64_t, int64_t, int64_t>>;
  using Pairs = std::vector<std::pair<int64_t, int64_t>>;
  for (const auto& [begin, end, tokens] : zone["tombstones"].cast<Triples>()) {
    out.tombstones.push_back({{begin, end}, tokens});
  }
  for (const auto& [begin, end] : zone["anchors"].cast<Pairs>()) out.anchors.push_back({begin, end});
  out.topics = zone["topics"].cast<std::vector<int64_t>>();
  return out;
}

py::dict KeptDict(const os::KeptState& state) {
  std::vector<std::tuple<int64_t, int64_t, int32_t, std::vector<int64_t>>> blocks;
  for (const auto& [span, rung, tokens] : state.blocks) blocks.emplace_back(span.begin, span.end, rung, tokens);
  py::dict out;
  out["until"] = state.until;
  out["blocks"] = blocks;
  return out;
}

os::KeptState ParseKept(const py::dict& zone) {
  os::KeptState out{.until = zone["until"].cast<int64_t>(), .blocks = {}};
  using Blocks = std::vector<std::tuple<int64_t, int64_t, int32_t, std::vector<int64_t>>>;
  for (auto& [begin, end, rung, tokens] : zone["blocks"].cast<Blocks>()) {
    out.blocks.push_back({{begin, end}, rung, std::move(tokens)});
  }
  return out;
}

py::dict RecallCountsDict(const os::RecallCounts& counts) {
  py::dict out;
  out["since_recent"] = counts.since_recent;
  out["since_periodic"] = counts.since_periodic;
  out["since_restored"] = counts.since_restored;
  out["signal_waits"] = counts.signal_waits;
  return out;
}

// Return None where a count is invalid: missing, not a number, or out of range.
std::optional<os::RecallCounts> ParseRecallCounts(const py::object& counts) {
  if (!py::isinstance<py::dict>(counts)) return std::nullopt;
  try {
    return os::RecallCounts{.since_recent = counts["since_recent"].cast<int64_t>(),
                            .since_periodic = counts["since_periodic"].cast<int64_t>(),
                            .since_restored = counts["since_restored"].cast<std::optional<int64_t>>(),
                            .signal_waits = counts["signal_waits"].cast<bool>()};
  } catch (const py::cast_error&) {
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_KeyError)) throw;
  }
  return std::nullopt;
}

std::vector<Placement> Resume(MemoryOs& self, int64_t stream_end, std::vector<PageRef> pages,
                              std::optional<int64_t> rolling_from, std::optional<int64_t> read_until,
                              const std::optional<py::dict>& anchor_zone, const std::optional<py::dict>& kept,
                              const py::object& recall_counts, const py::object& cooldown_until,
                              std::optional<int64_t> archived_until) {
  Decided(self);
  if (stream_end < 0) throw py::value_error("stream_end: " + std::to_string(stream_end) + ", expected at least 0");
  if (archived_until && *archived_until < stream_end) {
    throw py::value_error("archived_until: " + std::to_string(*archived_until) + ", expected at least stream_end, " +
                          std::to_string(stream_end));
  }
  int64_t previous = 0;
  for (const PageRef& page : pages) {
    if (page.stream != self.stream()) continue;
    if (page.span.begin < previous || page.span.empty()) {
      throw py::value_error("pages: expected the stream's pages in order of time");
    }
    previous = page.span.end;
  }
  os::ResumeState from{.stream_end = stream_end,
                       .pages = std::move(pages),
                       .rolling_from = rolling_from,
                       .read_until = read_until,
                       .recall_counts = ParseRecallCounts(recall_counts),
                       .archived_until = archived_until};
  if (anchor_zone) from.anchor_zone = ParseAnchorZone(*anchor_zone);
  if (kept) from.kept = ParseKept(*kept);
  try {
    from.cooldown_until = cooldown_until.cast<int64_t>();
  } catch (const py::cast_error&) {  // no frame could have had such a value
  }
  return self.Resume(from);
}

const char* BlockEndName(os::BlockEnd end) {
  switch (end) {
    case os::BlockEnd::kLength:
      return "length";
    case os::BlockEnd::kSentence:
      return "sentence";
    case os::BlockEnd::kParagraph:
      return "paragraph";
    case os::BlockEnd::kAnswer:
      return "answer";
    case os::BlockEnd::kTurn:
      return "turn";
    case os::BlockEnd::kTopic:
      return "topic";
    case os::BlockEnd::kSignal:
      return "signal";
    case os::BlockEnd::kQuestion:
      return "question";
    case os::BlockEnd::kText:
      return "text";
  }
  EVERLONG_CHECK(false);
}

py::list RestoredList(const std::vector<os::RestoredRun>& restored) {
  py::list runs;
  for (const auto& [block, stream, span, detail_slots] : restored) {
    py::dict run;
    run["block"] = block;
    run["stream"] = stream;
    run["begin"] = span.begin;
    run["end"] = span.end;
    if (detail_slots > 0) run["detail_slots"] = detail_slots;
    runs.append(std::move(run));
  }
  return runs;
}

py::list Trace(const MemoryOs& self) {
  py::list events;
  for (const os::Event& event : self.trace()) {
    py::dict entry;
    entry["stream"] = event.stream;
    entry["stream_position"] = event.stream_position;
    entry["state"] = StateName(event.state);
    entry["what"] = NameOf(event.what);
    entry["begin"] = event.span.begin;
    entry["end"] = event.span.end;
    entry["tokens"] = event.tokens;
    entry["restored"] = RestoredList(event.restored);
    entry["trigger"] = event.trigger ? py::object(py::str(TriggerName(*event.trigger))) : py::none();
    entry["ended_by"] = event.ended_by ? py::object(py::str(BlockEndName(*event.ended_by))) : py::none();
    entry["branched_at"] = event.branched_at;
    events.append(std::move(entry));
  }
  return events;
}

}  // namespace

void BindMemoryOs(py::module_& module) {
  BindConfig(module);
  BindActions(module);
  py::class_<MemoryOs>(module, "MemoryOs")
      .def(py::init([](const MemoryOsConfig& config) {
             RaiseIfError(Validate(config));
             return MemoryOs(config);
           }),
           py::arg("config"))
      .def("branch", [](MemoryOs& self) { return Decided(self).Branch(); })
      .def(
          "take_trace",
          [](MemoryOs& self, const MemoryOs& branch) {
            if (!branch.branched_at()) throw py::value_error("branch: expected what branch() returned");
            self.TakeTrace(branch);
          },
          py::arg("branch"))
      .def("room", &MemoryOs::Room)
      .def("next_position", &MemoryOs::NextPosition)
      .def("observe", &Observe, py::arg("tokens"), py::arg("origin"),
           py::arg("boundaries") = std::vector<std::pair<int64_t, std::string>>{},
           py::arg("topic_probabilities") = py::array_t<float>(), py::arg("tombstone_scores") = std::vector<float>())
      .def(
          "raise_signal",
          [](MemoryOs& self, const std::string& signal) { return Decided(self).Raise(ParseSignal(signal)); },
          py::arg("signal"))
      .def("end_of_text", [](MemoryOs& self) { return Decided(self).EndOfText(); })
      .def("choose", &Choose, py::arg("tokens"))
      .def("begin_prompt", [](MemoryOs& self) { return Decided(self).BeginPrompt(); })
      .def(
          "recall",
          [](MemoryOs& self, const std::vector<PageRef>& pages, const std::vector<PageRef>& conversation,
             const std::map<int64_t, std::vector<int64_t>>& kept,
             const std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t, int32_t>>& details) {
            std::vector<os::KeptPayload> payloads;
            for (const auto& [block, tokens] : kept) {
              payloads.push_back({block, tokens});
              std::ranges::sort(payloads.back().tokens);
            }
            std::vector<os::DetailBlock> blocks;
            for (const auto& [block, stream, begin, end, slots] : details) {
              if (slots < 1) throw py::value_error("details: " + std::to_string(slots) + " slots, expected at least 1");
              blocks.push_back({block, stream, {begin, end}, slots});
            }
            return Decided(self).Recall(pages, conversation, payloads, blocks);
          },
          py::arg("pages"), py::arg("conversation") = std::vector<PageRef>(),
          py::arg("kept") = std::map<int64_t, std::vector<int64_t>>(),
          py::arg("details") = std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t, int32_t>>())
      .def("clear_recalled", [](MemoryOs& self) { Decided(self).ClearRecalled(); })
      .def("resume", &Resume, py::arg("stream_end"), py::arg("pages"), py::kw_only(),
           py::arg("rolling_from") = py::none(), py::arg("read_until") = py::none(),
           py::arg("anchor_zone") = py::none(), py::arg("kept") = py::none(), py::arg("recall_counts") = py::none(),
           py::arg("cooldown_until") = 0, py::arg("archived_until") = py::none())
      .def("stop_archiving", &MemoryOs::StopArchiving)
      .def_property_readonly("archiving", &MemoryOs::archiving)
      .def_property_readonly("state", [](const MemoryOs& self) { return StateName(self.state()); })
      .def_property_readonly("stream", &MemoryOs::stream)
      .def_property_readonly("stream_end", &MemoryOs::stream_end)
      .def_property_readonly("archived_until", &MemoryOs::archived_until)
      .def_property_readonly("read_until", &MemoryOs::read_until)
      .def_property_readonly(
          "conversation",
          [](const MemoryOs& self) { return std::pair(self.conversation().begin, self.conversation().end); })
      .def_property_readonly("rolling",
                             [](const MemoryOs& self) { return std::pair(self.rolling().begin, self.rolling().end); })
      .def_property_readonly("sinks", &MemoryOs::sinks)
      .def_property_readonly("anchor_zone", [](const MemoryOs& self) { return AnchorZoneDict(self.anchor_zone()); })
      .def_property_readonly("kept", [](const MemoryOs& self) { return KeptDict(self.kept().state()); })
      .def_property_readonly("kept_held", [](const MemoryOs& self) { return self.kept().Held(); })
      .def_property_readonly("kept_shown", [](const MemoryOs& self) { return self.kept().Shown(); })
      .def_property_readonly("kept_position", &MemoryOs::kept_position)
      .def_property_readonly("open_from", &MemoryOs::open_from)
      .def_property_readonly("recall_counts",
                             [](const MemoryOs& self) { return RecallCountsDict(self.recall_counts()); })
      .def_property_readonly("cooldown_until", &MemoryOs::cooldown_until)
      .def_property_readonly("anchor_positions", &MemoryOs::AnchorPositions)
      .def_property_readonly("recalled_tokens", &MemoryOs::recalled_tokens)
      .def_property_readonly("evicted", &MemoryOs::evicted)
      .def("trace", &Trace);
}

}  // namespace everlong::bindings

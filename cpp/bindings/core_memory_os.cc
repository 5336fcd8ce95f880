#include "core_memory_os.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

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
using os::MemoryOs;
using os::MemoryOsConfig;
using os::Origin;
using os::Placement;
using os::TrimAction;

// What these objects are to Python's type checkers. Nothing is checked at run time that was not before.
using OptionalDict = py::typing::Optional<AnyDict>;  // any object
using Integer = py::typing::Union<py::int_>;         // any object

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
  const size_t stones = self.frame().StandIns().size();
  if (!tombstone_scores.empty() && tombstone_scores.size() != stones) {
    throw py::value_error("tombstone_scores: expected none, or one for each of " + std::to_string(stones) +
                          " tombstones");
  }
  return self.Observe(tokens, ParseOrigin(origin), places,
                      {probabilities.data(), static_cast<size_t>(probabilities.size())}, tombstone_scores);
}

AnyDict RecallCountsDict(os::RecallCounts counts) {
  AnyDict out;
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
                              const std::optional<ZoneDict>& anchor_zone, const std::optional<AnyDict>& kept,
                              const OptionalDict& recall_counts, const Integer& cooldown_until,
                              std::optional<int64_t> archived_until) {
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
  if (anchor_zone) AddAnchorZone(*anchor_zone, from.zones);
  if (kept) AddKept(*kept, from.zones);
  try {
    from.cooldown_until = cooldown_until.cast<int64_t>();
  } catch (const py::cast_error&) {  // no frame could have had such a value
  }
  return Decided(self).Resume(from);  // here, because what is cast above may run Python, and with it other threads
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
  for (const os::RestoredRun& of : restored) {
    py::dict run;
    run["block"] = of.block;
    run["stream"] = of.stream;
    run["begin"] = of.span.begin;
    run["end"] = of.span.end;
    if (of.detail_slots > 0) run["detail_slots"] = of.detail_slots;
    if (!of.by.empty()) run["by"] = of.by;
    if (of.sure) run["sure"] = *of.sure;
    runs.append(std::move(run));
  }
  return runs;
}

// A new dict may run Python's garbage collector, and with it other threads: what they change is not looked at.
py::typing::List<AnyDict> Trace(const MemoryOs& self) {
  py::typing::List<AnyDict> events;
  const std::vector<os::Event> trace = self.trace();
  for (const os::Event& event : trace) {
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

// What reads and writes the stream, and what decides.
void BindDecisions(py::class_<MemoryOs>& type) {
  type.def("room", &MemoryOs::Room)
      .def("next_position", &MemoryOs::NextPosition)
      .def("observe", &Observe, py::arg("tokens"), py::arg("origin"),
           py::arg("boundaries") = std::vector<std::pair<int64_t, std::string>>{},
           py::arg("topic_probabilities") = py::array_t<float>(), py::arg("tombstone_scores") = std::vector<float>(),
           R"(Note tokens of an origin: "read", "prompt" or "generated". CapacityError when there is no room() for them.

- boundaries: where blocks may end, (offset 0..tokens, "sentence" | "paragraph" | "turn" | "signal"), ascending.
- topic_probabilities: from the learned trigger, one a token or none. Each says, once its token is read, how
  probably a topic ended topic_lookahead tokens before.
- tombstone_scores: how much the newest token attends to each tombstone, one for each or none.)")
      .def(
          "raise_signal",
          [](MemoryOs& self, const std::string& signal) { return Decided(self).Raise(ParseSignal(signal)); },
          py::arg("signal"), "Note a signal, \"summarize\" or \"retrieve\", right after the newest token.")
      .def("end_of_text", [](MemoryOs& self) { return Decided(self).EndOfText(); })
      .def("begin_prompt", [](MemoryOs& self) { return Decided(self).BeginPrompt(); })
      .def("choose", &Choose, py::arg("tokens"),
           R"(Answer the oldest open Trim by tokens of the stream, the best first.

Until all are answered every call that decides something raises ValueError. So does this where no answer is due,
or the tokens are no answer.)")
      .def("stop_archiving", &MemoryOs::StopArchiving);
}

void BindRecall(py::class_<MemoryOs>& type) {
  type.def(
          "recall", [](MemoryOs& self, const std::vector<os::Offer>& offers) { return Decided(self).Recall(offers); },
          py::arg("offers"), "Replace what was recalled by what fits of these offers, and return where it goes.")
      .def("clear_recalled", [](MemoryOs& self) { Decided(self).ClearRecalled(); })
      .def("resume", &Resume, py::arg("stream_end"), py::arg("pages"), py::kw_only(),
           py::arg("rolling_from") = py::none(), py::arg("read_until") = py::none(),
           py::arg("anchor_zone") = py::none(), py::arg("kept") = py::none(), py::arg("recall_counts") = py::none(),
           py::arg("cooldown_until") = 0, py::arg("archived_until") = py::none(),
           R"(Go on in a new process. Each keyword is a field of memory_os.h's ResumeState.

- recall_counts, cooldown_until: those of an earlier frame. What no frame could have is left out.
- archived_until: what is fed from stream_end up to there is in the archive. ValueError where it is before
  stream_end.)");
}

// A branch, and the trace of decisions.
void BindTrace(py::class_<MemoryOs>& type) {
  type.def(
          "branch", [](MemoryOs& self) { return Decided(self).Branch(); },
          "Return a copy that archives nothing. Its events say where it left the stream.")
      .def(
          "take_trace",
          [](MemoryOs& self, const MemoryOs& branch) {
            if (!branch.branched_at()) throw py::value_error("branch: expected what branch() returned");
            self.TakeTrace(branch);
          },
          py::arg("branch"), "Take over the events of a branch() of this one.")
      .def("trace", &Trace,
           R"(Return dicts of what was decided, oldest first; memory_os.h's Event says what each field may be.

Fields: stream, stream_position, state, what, begin, end, tokens, and those below. They are None where there is
none.

- restored: dicts of block, stream, begin, end; of Detail Tokens, detail_slots; by and sure, as it was offered.
- trigger: of a recall, "prompt", "recent", "periodic", "signal" or "tombstone".
- ended_by: of a block, "length", "sentence", "paragraph", "answer", "turn", "topic", "signal", "question" or
  "text".
- branched_at: where the branch in which it was decided left the stream.)");
}

// Where the stream stands, and the spans of it that the frame holds.
void BindPlaces(py::class_<MemoryOs>& type) {
  type.def_property_readonly("archiving", &MemoryOs::archiving)
      .def_property_readonly(
          "state", [](const MemoryOs& self) { return StateName(self.state()); },
          "One of \"generating\", \"archiving\" and \"retrieving\".")
      .def_property_readonly("stream", &MemoryOs::stream)
      .def_property_readonly("stream_end", &MemoryOs::stream_end)
      .def_property_readonly("archived_until", &MemoryOs::archived_until)
      .def_property_readonly("read_until", &MemoryOs::read_until,
                             "One past the newest token that was read, not asked or generated.")
      .def_property_readonly(
          "conversation",
          [](const MemoryOs& self) { return std::pair(self.conversation().begin, self.conversation().end); })
      .def_property_readonly("rolling",
                             [](const MemoryOs& self) { return std::pair(self.rolling().begin, self.rolling().end); })
      .def_property_readonly("sinks", &MemoryOs::sinks)
      .def_property_readonly("open_from", &MemoryOs::open_from, "The first token of the open block.")
      .def_property_readonly("recalled_tokens", &MemoryOs::recalled_tokens)
      .def_property_readonly("evicted", &MemoryOs::evicted,
                             "Whether anything has left the frame. Only then is there a recalled zone.")
      .def_property_readonly(
          "recall_counts", [](const MemoryOs& self) { return RecallCountsDict(self.recall_counts()); },
          "since_recent, since_periodic, since_restored (None: nothing came back yet), in tokens; signal_waits.")
      .def_property_readonly("cooldown_until", &MemoryOs::cooldown_until,
                             "Signals before this token of the stream are passed over.");
}

}  // namespace

void BindMemoryOs(py::module_& module) {
  BindMemoryOsConfig(module);
  BindMemoryOsActions(module);
  BindOffers(module);
  py::class_<MemoryOs> type(
      module, "MemoryOs",
      R"(The Memory OS: cpp/os/include/everlong/os/memory_os.h. An invalid config raises ValueError.

Thread-safe: a call keeps the GIL, so calls take turns. What one thread decides another one sees.)");
  type.def(py::init([](const MemoryOsConfig& config) {
             RaiseIfError(Validate(config));
             return MemoryOs(config);
           }),
           py::arg("config"));
  BindDecisions(type);
  BindRecall(type);
  BindTrace(type);
  BindPlaces(type);
  BindZones(type);
}

}  // namespace everlong::bindings

// The names of kinds of nodes and edges, as users see them.
#pragma once

#include <string_view>

#include "everlong/store/graph.h"

namespace everlong::graph {

constexpr std::string_view NameOf(store::NodeKind kind) {
  switch (kind) {
    case store::NodeKind::kBlock:
      return "block";
    case store::NodeKind::kTopic:
      return "topic";
    case store::NodeKind::kTimeline:
      return "timeline";
    case store::NodeKind::kEntity:
      return "entity";
  }
  return "";
}

constexpr std::string_view NameOf(store::EdgeKind kind) {
  switch (kind) {
    case store::EdgeKind::kNext:
      return "next";
    case store::EdgeKind::kPrevious:
      return "previous";
    case store::EdgeKind::kBelongsTo:
      return "belongs_to";
  }
  return "";
}

}  // namespace everlong::graph

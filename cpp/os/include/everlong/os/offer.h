// What may come back into the frame, and the one function that places it there.
//
// Whoever has something to bring makes offers: a search of the index, a policy, a tombstone, a walk, the conversation,
// a part. An offer says what it is, for which span, by whom and how sure. PlaceOffers ranks the offers under the
// budgets.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "everlong/base/page_ref.h"
#include "everlong/base/token_span.h"
#include "everlong/os/residency.h"

namespace everlong::os {

enum class OfferKind : uint8_t {
  kPage,          // a page's tokens
  kChosen,        // of a page, only the tokens that were chosen of its block
  kDetails,       // slots that stand for all tokens of a block, and are none of them
  kConversation,  // a page of the conversation, whole
};

struct Offer {
  OfferKind kind = OfferKind::kPage;
  PageRef page;                              // kDetails: the block and all its tokens
  std::vector<int64_t> tokens = {};          // kChosen: of the block's stream, ascending
  int32_t slots = 0;                         // kDetails: at least 1 (CHECKed). The other kinds cost a slot a token.
  std::string by = {};                       // who offers it, for people: "search", "walk", "conversation"
  std::optional<float> sure = std::nullopt;  // the probability that it is wanted, 0 to 1, where its maker knows
};

// One run of tokens to restore into the recalled zone. Or the Detail Tokens of a block, which are computed there:
// `page` then names the block and all its tokens, and `tokens` counts the slots that stand for them.
struct Placement {
  PageRef page;
  int32_t first_token = 0;  // within the page
  int32_t tokens = 0;
  int64_t position = 0;  // frame position of the first token
  bool details = false;
};

// Tokens of a block that came back.
struct RestoredRun {
  int64_t block = 0;
  int64_t stream = 0;
  TokenSpan span;                            // of that stream
  int32_t detail_slots = 0;                  // 0: the tokens themselves; else so many slots came in their place
  std::string by = {};                       // who offered the newest of them
  std::optional<float> sure = std::nullopt;  // the same
  bool operator==(const RestoredRun&) const = default;
};

// Where offers came to lie.
struct Placed {
  std::vector<Placement> placements;  // in frame order, without gaps; the last token is right before rolling
  std::vector<RestoredRun> restored;  // in frame order; neighbours of one block are one
  int64_t slots = 0;                  // all of them
  int64_t left_out = 0;               // found tokens that did not fit
  bool found = false;                 // whether anything beside the conversation was placed
};

// Place offers in the recalled zone, in this frame order: conversation, Detail Tokens, pages. Those of a kind lie as
// they are given. From the last one backwards each gets what is left of its budget, so the last ones matter most.
//
// - Pages: all that the others leave. Tokens that are resident already and sinks of their stream are left out. So is
// the
//   second mention of a page, and what exceeds the zone: the first tokens are dropped. A page that is resident in its
//   middle comes in several placements. Of a kChosen page, tokens that a zone holds stay there.
// - Detail Tokens: each whole or not at all. Where not all fit, the first ones are left out. Beside pages they get half
//   of the zone, and what pages leave of it. Alone they get all of it. A block of which nothing has left the frame is
//   left out, and so is a second mention.
// - The conversation: its newest pages, whole, at most `conversation_tokens` and half of the zone. Where nothing else
// is
//   placed, as much as fits. Its pages are not repeated where kPage names them.
Placed PlaceOffers(std::span<const Offer> offers, const Residency& frame, int64_t stream, int64_t conversation_tokens);

}  // namespace everlong::os

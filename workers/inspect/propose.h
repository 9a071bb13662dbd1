// Which data a directory has, and a configuration for it: the worker's half of `ringfeed init`.
#pragma once

#include <string>

#include "workers/inspect/describers.h"
#include "workers/kit/proposal.h"

namespace ringfeed::inspect {

// What `--propose` answers with, as its exit status.
inline constexpr int kProposed = 0;
inline constexpr int kNoProposal = 1;  // why is said on standard error
inline constexpr int kWrongWords = 2;  // of the command line, likewise

struct ProposalQuestion {
  std::string kind = {};  // a name of Describers::kinds; empty: to be guessed
  std::string directory = {};
  ProposalWish wish = {};
};

struct ProposalAnswer {
  int status = kNoProposal;
  std::string text = {};  // kProposed: see propose_main(); else the sentence
};

[[nodiscard]] ProposalAnswer propose(const ProposalQuestion& question,
                                     const Describers& describers);

// Takes the words behind --propose, [--feed=F] [--file=F] [KIND] [DIRECTORY], and returns the exit
// status. Prints three lines, the kind, the feed and what was found, and behind them the
// configuration.
int propose_main(int count, char** words, const Describers& describers);

}  // namespace ringfeed::inspect

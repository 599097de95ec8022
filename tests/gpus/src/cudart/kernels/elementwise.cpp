// op_with_req<OPERATION, REQUEST>: out[i] = OPERATION(in[i], ...), for arrays of one length.
#include <cmath>

#include "types.h"

namespace gpus {
namespace {

Work with_request(const Launch& launch) {
  const std::string& operation = launch.operation().arguments[0].word;
  (void)operation;
  return {};
}

const Registered registered("op_with_req", with_request);

}  // namespace
}  // namespace gpus

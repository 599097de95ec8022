// A page of file:// may start no Worker, in which Material searches. A frame with the same script does as well, and needs
// no network, as Material's own stand-in would.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(script) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc =
        "<script>postMessage = said => parent.postMessage(said, '*')<\/script>" +
        `<script src="${new URL(script, location)}"><\/script>`;
      this.ready = new Promise(resolve => { frame.onload = () => resolve(frame.contentWindow); });
      addEventListener("message", event => {
        if (event.source !== frame.contentWindow) return;
        event.stopImmediatePropagation();
        const heard = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(heard);
        if (this.onmessage) this.onmessage(heard);
      });
      document.body.append(frame);
    }
    postMessage(data) {
      this.ready.then(inside => inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
